//! The pass from q, k, v to attention over the paged cache. Every arena starts filled with NaN, so
//! all tests here also show that no stale slot or foreign page is ever read.

use crate::common::{DTYPES, Random, Weights, everywhere, same_bits};
use std::ops::Range;
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{
    AttnArgs, Ctx, KvArena, KvLayout, PAGE_TOKENS, QkvArgs, RopeTable, StepTokens, attention,
    qk_norm_rope_kv, scalar,
};

const EPS: f32 = 1e-6;
/// Layers of the arenas; layer 1 is used, layer 0 stays NaN.
const LAYERS: usize = 2;

/// A shape, and inputs for some rows.
struct Case {
    q_heads: usize,
    kv_heads: usize,
    d: usize,
    dtype: DType,
    norms: Option<(Weights, Weights)>,
    rope: RopeTable,
    /// Per row: q, k and v of all positions.
    rows: Vec<[Vec<f32>; 3]>,
    lengths: Vec<usize>,
}

/// Which positions of which rows a step feeds.
type Step = Vec<(usize, Range<usize>)>;

impl Case {
    fn new(seed: u64, heads: (usize, usize, usize), dtype: DType, norm: bool, lengths: &[usize]) -> Case {
        let (q_heads, kv_heads, d) = heads;
        let mut random = Random(seed);
        let mut weight = || Weights::random(&mut random, DTYPES[(seed % 3) as usize], 1, d);
        let norms = norm.then(|| (weight(), weight()));
        let inv_freq: Vec<f32> = (0..d / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / d as f32)).collect();
        let rope = RopeTable::new(&inv_freq, 1.0, lengths.iter().copied().max().unwrap_or(1));
        let rows = lengths
            .iter()
            .map(|len| {
                [q_heads, kv_heads, kv_heads]
                    .map(|h| random.vec(len * h * d).iter().map(|x| x * 2.0).collect())
            })
            .collect();
        Case { q_heads, kv_heads, d, dtype, norms, rope, rows, lengths: lengths.to_vec() }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt()
    }

    /// Page tables of all rows, scattered over the arena by `seed`, and the number of pages.
    fn tables(&self, seed: u64) -> (Vec<Vec<u32>>, usize) {
        let needed: Vec<usize> = self.lengths.iter().map(|l| l.div_ceil(PAGE_TOKENS)).collect();
        let total = needed.iter().sum::<usize>() + 3;
        let mut free: Vec<u32> = (0..total as u32).collect();
        let mut random = Random(seed);
        let tables = needed
            .iter()
            .map(|n| {
                let pick = |_| free.swap_remove(if seed == 0 { 0 } else { random.below(free.len()) });
                (0..*n).map(pick).collect()
            })
            .collect();
        (tables, total)
    }

    /// Feeds the steps; returns the output per row, `[length, q_heads * d]`, NaN where not fed.
    fn run(&self, ctx: Ctx<'_>, steps: &[Step], seed: u64) -> Vec<Vec<f32>> {
        let (tables, pages) = self.tables(seed);
        let (kv_heads, head_dim, dtype) = (self.kv_heads, self.d, self.dtype);
        let mut kv = KvArena::new(KvLayout { layers: LAYERS, kv_heads, head_dim, dtype, pages }).unwrap();
        (0..pages as u32).for_each(|page| kv.poison_page(page));
        let width = self.q_heads * self.d;
        let mut outs: Vec<Vec<f32>> = self.lengths.iter().map(|l| vec![f32::NAN; l * width]).collect();
        for step in steps {
            self.step(ctx, step, &tables, &mut kv, &mut outs);
        }
        outs
    }

    fn step(&self, ctx: Ctx<'_>, step: &Step, tables: &[Vec<u32>], kv: &mut KvArena, outs: &mut [Vec<f32>]) {
        let (mut token_row, mut positions) = (Vec::new(), Vec::new());
        let (mut row_pages, mut row_page_start) = (Vec::new(), vec![0]);
        let mut inputs: [Vec<f32>; 3] = Default::default();
        for (i, (row, range)) in step.iter().enumerate() {
            for position in range.clone() {
                token_row.push(i as u32);
                positions.push(position as u32);
                for (all, input) in inputs.iter_mut().zip(&self.rows[*row]) {
                    let width = input.len() / self.lengths[*row];
                    all.extend_from_slice(&input[position * width..(position + 1) * width]);
                }
            }
            // Only the pages in use, as the scheduler hands them out.
            row_pages.extend_from_slice(&tables[*row][..range.end.div_ceil(PAGE_TOKENS)]);
            row_page_start.push(row_pages.len() as u32);
        }
        let tokens = StepTokens {
            token_row: &token_row,
            positions: &positions,
            row_pages: &row_pages,
            row_page_start: &row_page_start,
        };
        let [mut q, mut k, v] = inputs;
        let args = QkvArgs {
            q: &mut q,
            k: &mut k,
            v: &v,
            q_norm: self.norms.as_ref().map(|n| n.0.get()),
            k_norm: self.norms.as_ref().map(|n| n.1.get()),
            eps: EPS,
            rope: &self.rope,
            tokens: &tokens,
            layer: 1,
        };
        qk_norm_rope_kv(ctx, args, kv);
        let mut out = vec![f32::NAN; q.len()];
        let args =
            AttnArgs { q: &q, tokens: &tokens, layer: 1, q_heads: self.q_heads, scale: self.scale(), kv };
        attention(ctx, args, &mut out);
        let width = self.q_heads * self.d;
        let fed = step.iter().flat_map(|(row, range)| range.clone().map(move |p| (*row, p)));
        for ((row, position), out) in fed.zip(out.chunks(width)) {
            outs[row][position * width..(position + 1) * width].copy_from_slice(out);
        }
    }

    /// The twins: one row, one token after the other, a contiguous cache.
    fn twin(&self, row: usize) -> Vec<f32> {
        let [q, k, v] = &self.rows[row];
        let (q_width, kv_width) = (self.q_heads * self.d, self.kv_heads * self.d);
        let mut cache = scalar::RowCache::new(self.kv_heads, self.d, self.dtype);
        let mut out = vec![0.0; q.len()];
        for p in 0..self.lengths[row] {
            let mut q = q[p * q_width..(p + 1) * q_width].to_vec();
            let mut k = k[p * kv_width..(p + 1) * kv_width].to_vec();
            let norms = self.norms.as_ref();
            scalar::qk_norm_rope(&mut q, norms.map(|n| n.0.get()), EPS, &self.rope, p);
            scalar::qk_norm_rope(&mut k, norms.map(|n| n.1.get()), EPS, &self.rope, p);
            cache.push(&k, &v[p * kv_width..(p + 1) * kv_width]);
            let out = &mut out[p * q_width..(p + 1) * q_width];
            scalar::attention(&q, self.q_heads, p, self.scale(), &cache, out);
        }
        out
    }

    fn whole(&self, row: usize) -> Step {
        vec![(row, 0..self.lengths[row])]
    }
}

/// (query heads, kv heads, head_dim), all group sizes and tails of the tiles.
const SHAPES: [(usize, usize, usize); 11] = [
    (1, 1, 2),
    (2, 1, 36),
    (4, 4, 8),
    (6, 2, 64),
    (4, 1, 16),
    (5, 1, 34),
    (7, 1, 40),
    (8, 1, 20),
    (35, 1, 6),
    (16, 8, 128),
    (9, 3, 44),
];

#[test]
fn paged_attention_equals_its_twin() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        for dtype in DTYPES {
            let case = Case::new(i as u64, shape, dtype, i % 2 == 0, &[35]);
            let expected = case.twin(0);
            everywhere(&[1, 2], |ctx| {
                let found = case.run(ctx, &[case.whole(0)], 7);
                same_bits(&found[0], &expected, &format!("{shape:?} {dtype:?} {:?}", ctx.isa));
            });
        }
    }
}

/// Three segments of 256 positions, and lengths on their borders.
#[test]
fn long_rows_equal_their_twins() {
    for (shape, dtype, length) in
        [((4, 2, 16), DType::Bf16, 600), ((3, 1, 36), DType::F32, 513), ((2, 1, 8), DType::F16, 257)]
    {
        let case = Case::new(31, shape, dtype, true, &[length]);
        let expected = case.twin(0);
        everywhere(&[3], |ctx| {
            let found = case.run(ctx, &[case.whole(0)], 5);
            same_bits(&found[0], &expected, &format!("{shape:?} {length} {:?}", ctx.isa));
        });
    }
}

/// So many tokens that keys and values are turned into f32 first, and more than go together: head dimensions with
/// blocks of 256 to 64 positions, odd ones, and one that is too long for it.
#[test]
fn many_tokens_of_a_row_equal_their_twins() {
    for (shape, dtype, length) in [
        ((3, 1, 64), DType::F16, 330),
        ((2, 2, 128), DType::Bf16, 270),
        ((8, 1, 40), DType::F32, 100),
        ((9, 3, 44), DType::F16, 290),
        ((1, 1, 256), DType::F16, 90),
        ((1, 1, 62), DType::Bf16, 401),
        ((12, 1, 258), DType::F16, 40),
    ] {
        let case = Case::new(91, shape, dtype, false, &[length]);
        let expected = case.twin(0);
        everywhere(&[1, 3], |ctx| {
            let found = case.run(ctx, &[case.whole(0)], 8);
            same_bits(&found[0], &expected, &format!("{shape:?} {dtype:?} {:?}", ctx.isa));
        });
    }
}

/// Steps that begin and end on and beside the borders of pages, of groups of 64 keys, of blocks and of segments.
#[test]
fn steps_of_any_length_equal_one_step() {
    let borders = [0, 1, 15, 31, 63, 64, 80, 127, 129, 192, 255, 256, 257, 320, 321, 383, 385, 400];
    for (shape, dtype) in [((3, 1, 64), DType::F16), ((1, 1, 128), DType::Bf16), ((8, 1, 18), DType::F32)] {
        let case = Case::new(95, shape, dtype, true, &[400]);
        everywhere(&[1], |ctx| {
            let whole = case.run(ctx, &[case.whole(0)], 1);
            for apart in [1, 3] {
                let mut borders: Vec<usize> = borders.iter().copied().step_by(apart).collect();
                borders.push(400);
                let steps: Vec<Step> = borders.windows(2).map(|b| vec![(0, b[0]..b[1])]).collect();
                let found = case.run(ctx, &steps, 2);
                same_bits(&found[0], &whole[0], &format!("{shape:?} {:?} every {apart}", ctx.isa));
            }
        });
    }
}

#[test]
fn extend_equals_decode() {
    let case = Case::new(41, (6, 2, 24), DType::Bf16, true, &[300]);
    everywhere(&[1, 2], |ctx| {
        let whole = case.run(ctx, &[case.whole(0)], 1);
        let decode: Vec<Step> = (0..300).map(|p| vec![(0, p..p + 1)]).collect();
        same_bits(&case.run(ctx, &decode, 1)[0], &whole[0], "decode");
        for chunk in [5, 16, 17, 255] {
            let steps: Vec<Step> =
                (0..300).step_by(chunk).map(|p| vec![(0, p..(p + chunk).min(300))]).collect();
            same_bits(&case.run(ctx, &steps, 1)[0], &whole[0], &format!("chunks of {chunk}"));
        }
    });
}

#[test]
fn rows_do_not_see_their_batch_or_their_pages() {
    let lengths = [40, 1, 17, 290, 16, 33, 100, 5];
    let case = Case::new(51, (4, 2, 20), DType::F16, true, &lengths);
    let together: Step = (0..lengths.len()).map(|row| (row, 0..lengths[row])).collect();
    // Some rows extend while others decode.
    let mut mixed: Vec<Step> = vec![Vec::new(); 300];
    for (row, length) in lengths.into_iter().enumerate() {
        let (mut at, mut step) = (0, row);
        while at < length {
            let n = [1, 7, 1, 64][(step + row) % 4].min(length - at);
            mixed[step].push((row, at..at + n));
            (at, step) = (at + n, step + 1);
        }
    }
    everywhere(&[1, 2, 3, 4], |ctx| {
        let all = case.run(ctx, std::slice::from_ref(&together), 3);
        let steps = case.run(ctx, &mixed, 4);
        for row in 0..lengths.len() {
            let alone = case.run(ctx, &[case.whole(row)], 0);
            same_bits(&all[row], &alone[row], &format!("row {row} in a batch"));
            same_bits(&steps[row], &alone[row], &format!("row {row} in mixed steps"));
        }
    });
}

#[test]
fn work_of_parallel_size_gives_the_same_bits_on_any_number_of_threads() {
    let case = Case::new(61, (16, 8, 64), DType::Bf16, true, &[300, 200]);
    let step: Step = vec![(1, 0..200), (0, 0..300)];
    let mut expected = None;
    everywhere(&[1, 2, 3, 4], |ctx| {
        let found = case.run(ctx, std::slice::from_ref(&step), 9);
        let expected = expected.get_or_insert_with(|| found.clone());
        for row in 0..2 {
            same_bits(&found[row], &expected[row], &format!("{:?} {}", ctx.isa, ctx.workers.threads()));
        }
    });
}

/// Naive softmax attention in f64, from the raw inputs.
#[test]
fn attention_is_accurate() {
    for (dtype, bound) in [(DType::F32, 2e-6), (DType::F16, 4e-3), (DType::Bf16, 3e-2)] {
        let case = Case::new(71, (4, 2, 32), dtype, true, &[290]);
        let (d, group) = (case.d, 2);
        let norms = case.norms.as_ref().unwrap();
        let rotate = |x: &[f32], weight: &Weights, p: usize| -> Vec<f64> {
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / d as f64;
            let x: Vec<f64> =
                (0..d).map(|i| f64::from(x[i]) / (mean + f64::from(EPS)).sqrt() * weight.value(i)).collect();
            (0..d)
                .map(|i| {
                    let freq = f64::from(10000f32.powf(-2.0 * (i % (d / 2)) as f32 / d as f32));
                    let (sin, cos) = (p as f64 * freq).sin_cos();
                    if i < d / 2 { x[i] * cos - x[i + d / 2] * sin } else { x[i] * cos + x[i - d / 2] * sin }
                })
                .collect()
        };
        let [q, k, v] = &case.rows[0];
        let at = |x: &[f32], heads: usize, p: usize, h: usize| x[(p * heads + h) * d..][..d].to_vec();
        everywhere(&[1], |ctx| {
            let found = &case.run(ctx, &[case.whole(0)], 2)[0];
            for (p, h) in [(0, 0), (1, 3), (255, 1), (256, 2), (289, 3)] {
                let query = rotate(&at(q, 4, p, h), &norms.0, p);
                let scores: Vec<f64> = (0..=p)
                    .map(|j| {
                        let key = rotate(&at(k, 2, j, h / group), &norms.1, j);
                        query.iter().zip(&key).map(|(a, b)| a * b).sum::<f64>() / (d as f64).sqrt()
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                for i in 0..d {
                    let value = |j: usize| f64::from(at(v, 2, j, h / group)[i]);
                    let truth = (0..=p).map(|j| (scores[j] - max).exp() / sum * value(j)).sum::<f64>();
                    let error = (f64::from(found[(p * 4 + h) * d + i]) - truth).abs();
                    assert!(error < bound, "{dtype:?} position {p} head {h}: error {error:e}");
                }
            }
        });
    }
}

/// Tokens that go together, a whole prompt or a few at a time, see each other's keys and values in registers, but not those
/// behind them, broken ones either.
#[test]
fn a_broken_value_does_not_reach_back() {
    let few: Vec<Step> = (0..300).step_by(5).map(|p| vec![(0, p..p + 5)]).collect();
    for at in [3, 64, 257] {
        let mut case = Case::new(85, (3, 1, 64), DType::F32, false, &[300]);
        everywhere(&[1], |ctx| {
            let steps = [&[case.whole(0)][..], &few];
            let clean = case.run(ctx, steps[0], 6);
            for broken in [f32::NAN, f32::INFINITY] {
                let kept = std::mem::replace(&mut case.rows[0][2][at * 64 + 5], broken);
                for steps in steps {
                    let found = case.run(ctx, steps, 6);
                    same_bits(&found[0][..at * 192], &clean[0][..at * 192], "before the fault");
                    assert!(!found[0][at * 192 + 5].is_finite() && !found[0][299 * 192 + 5].is_finite());
                }
                case.rows[0][2][at * 64 + 5] = kept;
            }
        });
    }
}

/// A cached NaN in one row's own past must show, and only there.
#[test]
fn a_broken_row_stays_alone() {
    let mut case = Case::new(81, (2, 1, 8), DType::F32, false, &[20, 20]);
    let step: Step = vec![(0, 0..20), (1, 0..20)];
    everywhere(&[1], |ctx| {
        let clean = case.run(ctx, std::slice::from_ref(&step), 6);
        let kept = std::mem::replace(&mut case.rows[0][2][3 * 8], f32::NAN);
        let broken = case.run(ctx, std::slice::from_ref(&step), 6);
        case.rows[0][2][3 * 8] = kept;
        same_bits(&broken[1], &clean[1], "the clean row");
        same_bits(&broken[0][..3 * 16], &clean[0][..3 * 16], "positions before the fault");
        assert!(broken[0][3 * 16].is_nan() && broken[0][19 * 16].is_nan());
    });
}

#[test]
fn rope_tables_are_rounded_from_f64() {
    let rope = RopeTable::new(&[1.0, 0.5], 2.0, 50_001);
    assert_eq!((rope.head_dim(), rope.positions()), (4, 50_001));
    let (cos, sin) = rope.at(50_000);
    assert_eq!(cos, [(50_000f64.cos() * 2.0) as f32, (25_000f64.cos() * 2.0) as f32]);
    assert_eq!(sin, [(50_000f64.sin() * 2.0) as f32, (25_000f64.sin() * 2.0) as f32]);
}
