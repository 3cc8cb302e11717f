//! Attention over the paged cache: decode and extend, units and their merge.

use half::bf16;
use tokenrouter_kernels::cuda::{AttnArgs, AttnPlan, Buffer, CudaError, HEAD_DIMS};

use crate::harness::{Gpu, POISON, Random, bits, close, everywhere, stride_of};

/// A cache of several sequences, and the queries of every position of each.
struct Case {
    head_dim: usize,
    q_heads: usize,
    kv_heads: usize,
    /// Positions of each sequence.
    lengths: Vec<usize>,
    /// Per sequence: queries `[length][q_heads][D]`, keys and values `[length][kv_heads][D]`.
    q: Vec<Vec<f32>>,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

/// What a step feeds of one sequence: which, the first position, how many.
type Fed = (usize, usize, usize);

impl Case {
    fn new(seed: u64, head_dim: usize, heads: (usize, usize), lengths: &[usize]) -> Self {
        let mut random = Random(seed);
        let mut fill = |per: usize, scale: f32| -> Vec<Vec<f32>> {
            let one = |n: &usize| random.bf16s(n * per * head_dim).iter().map(|x| x * scale).collect();
            lengths.iter().map(one).collect()
        };
        // Large queries, so that some weights are near 1 and some vanish.
        let (q, k, v) = (fill(heads.0, 8.0), fill(heads.1, 1.0), fill(heads.1, 1.0));
        Self { head_dim, q_heads: heads.0, kv_heads: heads.1, lengths: lengths.to_vec(), q, k, v }
    }

    fn table_stride(&self) -> usize {
        self.lengths.iter().max().unwrap().div_ceil(16)
    }

    /// Pages in a scrambled order; page 0 and some others belong to nobody. Entries past a sequence's end name page 0.
    fn tables(&self) -> (Vec<Vec<u32>>, usize) {
        let needed: usize = self.lengths.iter().map(|l| l.div_ceil(16)).sum();
        let mut free: Vec<u32> = (1..needed as u32 + 4).collect();
        let mut random = Random(99);
        for i in (1..free.len()).rev() {
            free.swap(i, random.below(i + 1));
        }
        let tables = self.lengths.iter().map(|l| {
            let mut table = vec![0; self.table_stride()];
            table[..l.div_ceil(16)].iter_mut().for_each(|p| *p = free.pop().unwrap());
            table
        });
        (tables.collect(), needed + 4)
    }

    /// The cache after every sequence was fed up to `filled(sequence)`; everything else is NaN.
    fn cache(&self, gpu: &Gpu, filled: impl Fn(usize) -> usize) -> Buffer<bf16> {
        let (tables, pages) = self.tables();
        let d = self.head_dim;
        let mut kv = vec![POISON; pages * self.kv_heads * 32 * d];
        for (s, table) in tables.iter().enumerate() {
            for position in 0..filled(s) {
                for head in 0..self.kv_heads {
                    for (value, from) in [&self.k, &self.v].into_iter().enumerate() {
                        let page = table[position / 16] as usize;
                        let to = (((page * self.kv_heads + head) * 2 + value) * 16 + position % 16) * d;
                        let from = &from[s][(position * self.kv_heads + head) * d..][..d];
                        for (to, x) in kv[to..to + d].iter_mut().zip(from) {
                            *to = bf16::from_f32(*x);
                        }
                    }
                }
            }
        }
        gpu.buffer(&kv)
    }

    /// One step; outputs of all fed tokens, `[T][q_heads D]`.
    fn run(&self, gpu: &Gpu, fed: &[Fed]) -> Vec<u16> {
        let end = |s: usize| fed.iter().find(|f| f.0 == s).map_or(0, |f| f.1 + f.2);
        let kv = self.cache(gpu, end);
        let (width, d) = (self.q_heads * self.head_dim, self.head_dim);
        let stride = stride_of(width) + 8;
        let (all_tables, _) = self.tables();
        let (mut q, mut token_row, mut tables, mut rows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (row, (s, start, count)) in fed.iter().enumerate() {
            rows.push((token_row.len() as u32, *count as u32, *start as u32));
            q.extend(&self.q[*s][start * width..(start + count) * width]);
            token_row.extend(std::iter::repeat_n(row as u32, *count));
            tables.extend(&all_tables[*s]);
        }
        let plan = AttnPlan::new(&rows, self.q_heads as u32, self.kv_heads as u32).unwrap();
        let tokens = token_row.len();
        let q = gpu.rows(&q, width, stride);
        let partials = gpu.buffer(&vec![f32::NAN; plan.partials(d as u32)]);
        let out = gpu.buffer(&vec![POISON; (tokens + 1) * stride]);
        let (row, tables, token_row) = (gpu.buffer(&plan.rows), gpu.buffer(&tables), gpu.buffer(&token_row));
        let (row_count, token_count) = (gpu.buffer(&[fed.len() as u32]), gpu.buffer(&[tokens as u32]));
        let args = AttnArgs {
            q: q.ptr(),
            kv: kv.ptr(),
            row: row.ptr(),
            tables: tables.ptr(),
            token_row: token_row.ptr(),
            partials: partials.ptr(),
            out: out.ptr(),
            rows: row_count.ptr(),
            tokens: token_count.ptr(),
            q_heads: self.q_heads as u32,
            kv_heads: self.kv_heads as u32,
            q_stride: stride as u32,
            out_stride: stride as u32,
            table_stride: self.table_stride() as u32,
            scale: (d as f32).powf(-0.5) * std::f32::consts::LOG2_E,
        };
        // SAFETY: the buffers have these shapes; a bound above the tokens is allowed.
        unsafe { gpu.kernels.attention(&gpu.stream, tokens as u32 + 3, plan.items(), d as u32, &args) }
            .unwrap();
        let all = bits(&gpu.read(&out));
        let mut found = Vec::new();
        for (i, row) in all.chunks(stride).enumerate() {
            let written = if i < tokens { width } else { 0 };
            found.extend(&row[..written]);
            assert!(
                row[written..].iter().all(|x| *x == POISON.to_bits()),
                "token {i}: a write outside of the output"
            );
        }
        found
    }

    /// The attended values of one query head at a position of a sequence, in f64.
    fn expected(&self, s: usize, position: usize, head: usize) -> Vec<f64> {
        let (d, kv_head) = (self.head_dim, head * self.kv_heads / self.q_heads);
        let q = &self.q[s][(position * self.q_heads + head) * d..][..d];
        let row = |from: &Vec<f32>, j: usize| from[(j * self.kv_heads + kv_head) * d..][..d].to_vec();
        let scores: Vec<f64> = (0..=position)
            .map(|j| {
                let dot: f64 =
                    q.iter().zip(row(&self.k[s], j)).map(|(q, k)| f64::from(*q) * f64::from(k)).sum();
                dot / (d as f64).sqrt()
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|x| (x - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut out = vec![0.0; d];
        for (j, w) in weights.iter().enumerate() {
            for (o, v) in out.iter_mut().zip(row(&self.v[s], j)) {
                *o += w / sum * f64::from(v);
            }
        }
        out
    }

    fn check(&self, fed: &[Fed], found: &[u16]) {
        let width = self.q_heads * self.head_dim;
        let tokens = fed.iter().flat_map(|(s, start, count)| (*start..start + count).map(|p| (*s, p)));
        for ((s, position), row) in tokens.zip(found.chunks(width)) {
            for (head, values) in row.chunks(self.head_dim).enumerate() {
                for (i, (x, y)) in values.iter().zip(self.expected(s, position, head)).enumerate() {
                    let what =
                        format!("D {}, sequence {s}, position {position}, head {head}, {i}", self.head_dim);
                    // Weights are rounded to bf16 before they meet V: 2^-9 of the values' size.
                    close(bf16::from_bits(*x).to_f32(), y, 400.0, &what);
                }
            }
        }
    }
}

#[test]
fn attention_is_right_for_every_head_size_and_group() {
    let groups = [(4, 2), (3, 1), (8, 1), (2, 2)];
    everywhere(|gpu| {
        let mut all = Vec::new();
        for (i, head_dim) in HEAD_DIMS.iter().enumerate() {
            let case = Case::new(i as u64, *head_dim as usize, groups[i], &[1, 70, 64, 130]);
            let fed = [(3, 129, 1), (0, 0, 1), (1, 60, 10), (2, 63, 1)];
            let found = case.run(gpu, &fed);
            case.check(&fed, &found);
            all.push(found);
        }
        all
    });
}

/// More than eight units: the second level of the fold.
#[test]
fn long_sequences_fold_in_segments() {
    let case = Case::new(5, 16, (2, 1), &[1100, 513]);
    everywhere(|gpu| {
        let fed = [(0, 1097, 3), (1, 512, 1)];
        let found = case.run(gpu, &fed);
        case.check(&fed, &found);
        found
    });
}

/// The order of the fold, made visible: 2^24 + 1 is 2^24 in f32, and the large numbers cancel at the end. Left to right
/// without segments the rest would be 0, with segments of four units 4. The second value is what the last position gives.
fn visible_order() -> (Case, bf16) {
    let mut case = Case::new(8, 16, (1, 1), &[17 * 64]);
    case.q[0].fill(0.0);
    case.v[0].fill(0.0);
    let big = 16_777_216.0;
    for (unit, value) in [(0, big), (4, 1.0), (5, 1.0), (8, 1.0), (9, 1.0), (16, -big)] {
        case.v[0][unit * 64 * 16..][..16].fill(value);
    }
    // All scores are 0, so every weight is 1 and the sum of weights is the length.
    (case, bf16::from_f32(2.0 * (1.0 / (17.0 * 64.0))))
}

#[test]
fn units_fold_within_segments_of_eight() {
    let (case, expected) = visible_order();
    everywhere(|gpu| {
        let found = case.run(gpu, &[(0, 17 * 64 - 1, 1)]);
        assert_eq!(found, [expected.to_bits(); 16]);
    });
}

/// A token's bits may not depend on how its row was fed, or on what else is in the step.
#[test]
fn decode_equals_extend_to_the_bit() {
    let case = Case::new(6, 32, (6, 2), &[90, 40, 66]);
    let width = 6 * 32;
    everywhere(|gpu| {
        let whole = case.run(gpu, &[(0, 0, 90)]);
        for position in [0, 1, 15, 16, 62, 63, 64, 65, 89] {
            let expected = &whole[position * width..][..width];
            assert!(case.run(gpu, &[(0, position, 1)]) == expected, "position {position} alone");
        }
        let tail = case.run(gpu, &[(0, 50, 40)]);
        assert!(tail == whole[50 * width..], "the last 40 positions in one extend");
        // Behind another row, the tiles of 16 queries fall elsewhere.
        let mixed = case.run(gpu, &[(2, 60, 6), (1, 39, 1), (0, 57, 33)]);
        assert!(mixed[7 * width..] == whole[57 * width..], "behind two other rows");
        let alone = case.run(gpu, &[(1, 39, 1)]);
        assert!(mixed[6 * width..7 * width] == alone, "between two other rows");
    });
}

/// Rows of many queries have a kernel of their own. In chunks below its limit the same tokens take the other two.
#[test]
fn many_queries_have_the_bits_of_few() {
    let groups = [(4, 2), (3, 1), (8, 1), (2, 2)];
    // Several segments of units for the small heads, where they cost little.
    let lengths = [1100, 600, 200, 170];
    everywhere(|gpu| {
        let mut all = Vec::new();
        for (i, head_dim) in HEAD_DIMS.iter().enumerate() {
            let (length, group) = (lengths[i], groups[i].0 / groups[i].1);
            let case = Case::new(20 + i as u64, *head_dim as usize, groups[i], &[length, 70]);
            let width = groups[i].0 * *head_dim as usize;
            let most = 127 / group;
            let tokens = 137_usize.div_ceil(group).max(30);
            let start = length - tokens;
            // A row of few queries on either side of it, with its own items.
            let mixed = case.run(gpu, &[(1, 60, 3), (0, start, tokens)]);
            let mut few = case.run(gpu, &[(1, 60, 3)]);
            for from in (start..length).step_by(most) {
                few.extend(case.run(gpu, &[(0, from, most.min(length - from))]));
            }
            for (token, (a, b)) in mixed.chunks(width).zip(few.chunks(width)).enumerate() {
                assert!(a == b, "D {head_dim}, token {token}");
            }
            assert!(case.run(gpu, &[(0, start, tokens), (1, 60, 3)])[..tokens * width] == mixed[3 * width..]);
            case.check(&[(0, length - 1, 1)], &mixed[mixed.len() - width..]);
            all.push(mixed);
        }
        all
    });
}

/// As `units_fold_within_segments_of_eight`, for the last of many queries.
#[test]
fn units_of_many_queries_fold_within_segments_of_eight() {
    let (case, expected) = visible_order();
    everywhere(|gpu| {
        let found = case.run(gpu, &[(0, 15 * 64, 128)]);
        assert_eq!(found[127 * 16..], [expected.to_bits(); 16]);
    });
}

/// A negative value that vanishes under a larger weight leaves a zero without a sign, whether or not its query shares a tile
/// with later ones, whose units it does not see.
#[test]
fn zeros_have_no_sign() {
    let mut case = Case::new(9, 16, (1, 1), &[228]);
    case.q[0].fill(4.0);
    case.k[0].fill(1.0);
    case.k[0][..64 * 16].fill(-1.0);
    case.v[0].fill(0.0);
    case.v[0][..64 * 16].fill(-2e-38);
    everywhere(|gpu| {
        // The whole is a row of many queries, its halves are not.
        for fed in [[(0, 100, 128)], [(0, 100, 64)], [(0, 164, 64)], [(0, 100, 1)]] {
            let found = case.run(gpu, &fed);
            assert!(found.iter().all(|x| *x == 0), "{fed:?}");
        }
        assert!(case.run(gpu, &[(0, 63, 1)]).iter().all(|x| *x != 0), "alone it is no zero");
    });
}

#[test]
fn no_rows_attend_to_nothing() {
    let case = Case::new(7, 64, (2, 1), &[16]);
    everywhere(|gpu| assert!(case.run(gpu, &[]).is_empty()));
}

#[test]
fn plans_count_items_and_partials() {
    // Two query heads a kv head: 3 tokens are 6 queries, one tile; 9 tokens are 18, two.
    let plan = AttnPlan::new(&[(0, 3, 62), (3, 9, 0)], 8, 4).unwrap();
    assert_eq!(plan.items(), 2 * 4 + 2 * 4);
    assert_eq!(plan.partials(64), (8 * 6 + 8 * 16) * 68);
    assert_eq!((plan.rows[1].item, plan.rows[1].part, plan.rows[1].first), (8, 48, 3));
    // 128 queries need none.
    let plan = AttnPlan::new(&[(0, 64, 1000), (64, 63, 0), (127, 1, 5)], 8, 4).unwrap();
    assert_eq!((plan.rows[1].item, plan.rows[2].item, plan.items()), (0, 4 * 8, 4 * 8 + 4));
    let huge = AttnPlan::new(&[(0, 1, u32::MAX - 1)], 64, 8);
    assert!(matches!(huge, Err(CudaError::Shape(_))));
}
