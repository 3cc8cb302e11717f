//! Statistics and router signals: near the CPU's, with the CPU's ids.

use tokenrouter_kernels::cuda::{Buffer, NamedArgs, RowSignals, SignalArgs, StatsArgs, TileStats};
use tokenrouter_kernels::signals::{SignalFlags, TOP, signals};

use crate::harness::{Gpu, Random, everywhere};

/// Signals of `rows` with their lists.
struct Found {
    rows: Vec<RowSignals>,
    ids: Vec<u32>,
    logits: Vec<f32>,
}

/// Runs both passes over rows of `vocab` logits, which lie a little apart.
fn run(gpu: &Gpu, rows: &[Vec<f32>], top: u32) -> Found {
    let vocab = rows[0].len();
    let stride = vocab + 5;
    let mut values = vec![f32::NAN; rows.len() * stride];
    for (to, from) in values.chunks_mut(stride).zip(rows) {
        to[..vocab].copy_from_slice(from);
    }
    let logits = gpu.buffer(&values);
    let tiles: Buffer<TileStats> = gpu.zeroed(rows.len() * vocab.div_ceil(128));
    let found: Buffer<RowSignals> = gpu.zeroed(rows.len());
    let (ids, values_top) =
        (gpu.zeroed::<u32>(rows.len() * top as usize), gpu.zeroed::<f32>(rows.len() * top as usize));
    let (count, wanted) = (gpu.buffer(&[rows.len() as u32]), gpu.buffer(&[top]));
    let (vocab, stride) = (vocab as u32, stride as u32);
    let stats = StatsArgs { logits: logits.ptr(), tiles: tiles.ptr(), rows: count.ptr(), vocab, stride };
    let args = SignalArgs {
        logits: logits.ptr(),
        tiles: tiles.ptr(),
        signals: found.ptr(),
        top_ids: ids.ptr(),
        top_logits: values_top.ptr(),
        rows: count.ptr(),
        wanted: wanted.ptr(),
        vocab,
        stride,
        top,
    };
    // SAFETY: the buffers have these shapes.
    unsafe {
        gpu.kernels.logit_stats(&gpu.stream, rows.len() as u32, &stats).unwrap();
        gpu.kernels.row_signals(&gpu.stream, rows.len() as u32, &args).unwrap();
    }
    Found { rows: gpu.read(&found), ids: gpu.read(&ids), logits: gpu.read(&values_top) }
}

fn bits(rows: &[RowSignals]) -> Vec<[u32; 6]> {
    rows.iter().map(|r| bytemuck::cast(*r)).collect()
}

/// Rounded, so that ties are frequent.
fn logits(random: &mut Random, vocab: usize, spread: f32) -> Vec<f32> {
    random.vec(vocab).iter().map(|x| (x * 64.0).round() / 64.0 * spread).collect()
}

#[test]
fn signals_equal_the_cpu_s() {
    let mut random = Random(21);
    let mut cases = Vec::new();
    for vocab in [1, 2, 100, 128, 129, 455, 3000] {
        let rows: Vec<Vec<f32>> = [0.01, 3.0, 40.0]
            .iter()
            .map(|spread| {
                let mut row = logits(&mut random, vocab, *spread);
                row[vocab - vocab / 4..].fill(f32::NEG_INFINITY);
                row
            })
            .collect();
        cases.push(rows);
    }
    everywhere(|device| {
        let mut all = Vec::new();
        for rows in &cases {
            let found = run(device, rows, TOP as u32);
            for (i, row) in rows.iter().enumerate() {
                let (cpu, gpu) = (signals(row, SignalFlags::ALL), &found.rows[i]);
                let what = format!("vocabulary {}, row {i}: {gpu:?}, {cpu:?}", row.len());
                assert!((gpu.lse - cpu.lse).abs() <= 2e-6 * (1.0 + cpu.lse.abs()), "{what}");
                assert!((gpu.entropy - cpu.entropy).abs() <= 2e-6 * (1.0 + cpu.entropy), "{what}");
                assert!((gpu.margin - cpu.margin).abs() <= 1e-6, "{what}");
                assert_eq!(gpu.top_len, cpu.top_len, "{what}");
                assert_eq!((gpu.argmax, gpu.max), (cpu.top_ids[0], cpu.top_logits[0]), "{what}");
                for t in 0..TOP {
                    let listed = (found.ids[i * TOP + t], found.logits[i * TOP + t]);
                    let expected = if t < cpu.top_len as usize {
                        (cpu.top_ids[t], cpu.top_logits[t])
                    } else {
                        (0, f32::NEG_INFINITY)
                    };
                    assert_eq!(listed, expected, "{what}, entry {t}");
                }
                let alone = run(device, std::slice::from_ref(row), TOP as u32);
                assert_eq!(bits(&alone.rows)[0], bits(&found.rows)[i], "{what}: alone");
            }
            all.push((bits(&found.rows), found.ids));
        }
        all
    });
}

#[test]
fn a_hundred_largest_logits_come_in_order() {
    let row = logits(&mut Random(22), 1500, 3.0);
    let mut sorted: Vec<(u32, f32)> = row.iter().enumerate().map(|(i, x)| (i as u32, *x)).collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    everywhere(|gpu| {
        for top in [2, 100, 128] {
            let found = run(gpu, std::slice::from_ref(&row), top);
            let listed: Vec<_> = found.ids.into_iter().zip(found.logits).collect();
            assert_eq!(listed, sorted[..top as usize]);
        }
    });
}

#[test]
fn the_logits_of_named_ids() {
    let rows: Vec<Vec<f32>> = (0..300).map(|i| logits(&mut Random(30 + i), 130, 3.0)).collect();
    let ids: Vec<u32> = (0..300).map(|i| (i * 37) % 133).collect();
    let stride = 133;
    let mut values = vec![f32::NAN; rows.len() * stride];
    for (to, from) in values.chunks_mut(stride).zip(&rows) {
        to[..130].copy_from_slice(from);
    }
    everywhere(|gpu| {
        let (values, named, out) = (gpu.buffer(&values), gpu.buffer(&ids), gpu.buffer(&vec![9.0f32; 300]));
        // They live until everything has run.
        let counts = [300u32, 1].map(|count| gpu.buffer(&[count]));
        for count in &counts {
            let args = NamedArgs {
                logits: values.ptr(),
                ids: named.ptr(),
                out: out.ptr(),
                rows: count.ptr(),
                vocab: 130,
                stride: stride as u32,
            };
            // SAFETY: the buffers have these shapes.
            unsafe { gpu.kernels.named_logits(&gpu.stream, 300, &args) }.unwrap();
        }
        let found = gpu.read(&out);
        for ((row, id), found) in rows.iter().zip(&ids).zip(&found) {
            assert_eq!(*found, row.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY), "id {id}");
        }
        found.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
}

#[test]
fn extremes_cancel_nothing() {
    let mut one_hot = vec![f32::NEG_INFINITY; 300];
    one_hot[150] = 3.0;
    let mut far = vec![-300.0f32; 300];
    far[9] = 300.0;
    let mut nan = vec![0.0f32; 300];
    nan[200] = f32::NAN;
    let mut infinite = vec![0.0f32; 300];
    infinite[299] = f32::INFINITY;
    let rows =
        [one_hot, far, vec![2.0; 300], nan, infinite, vec![f32::NEG_INFINITY; 300], vec![f32::NAN; 300]];
    everywhere(|gpu| {
        let found = run(gpu, &rows, 8);
        let r = &found.rows;
        assert_eq!((r[0].lse, r[0].entropy, r[0].margin, r[0].top_len), (3.0, 0.0, 1.0, 1));
        assert_eq!((r[1].entropy, r[1].margin), (0.0, 1.0));
        assert!((r[2].entropy - 300f32.ln()).abs() < 1e-6 && r[2].margin == 0.0);
        assert_eq!(&found.ids[16..24], [0, 1, 2, 3, 4, 5, 6, 7], "ties go to low ids");
        for broken in [3, 4, 5, 6] {
            assert!(
                r[broken].entropy.is_nan() && !r[broken].lse.is_finite(),
                "row {broken}: {:?}",
                r[broken]
            );
        }
        assert_eq!((r[5].top_len, r[6].top_len), (0, 0));
        bits(&found.rows).iter().take(3).copied().collect::<Vec<_>>()
    });
}
