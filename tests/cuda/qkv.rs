//! Norm and rotation of heads, and the cache write.

use half::bf16;
use tokenrouter_kernels::cpu::RopeTable;
use tokenrouter_kernels::cuda::{HEAD_DIMS, Ptr, QkvArgs};

use crate::harness::{Gpu, POISON, Random, bits, close, everywhere, round, stride_of};

const EPS: f32 = 1e-6;
/// Tokens of three rows at these (row, position); row 2 crosses a page.
const TOKENS: [(u32, u32); 7] = [(0, 0), (2, 14), (2, 15), (2, 16), (2, 17), (1, 33), (0, 1)];
/// Pages of the rows, three each; page 0 is reserved, 3 and 8 belong to nobody.
const TABLES: [[u32; 3]; 3] = [[5, 0, 0], [9, 4, 1], [7, 2, 6]];
const PAGES: usize = 10;

struct Case {
    head_dim: usize,
    q_heads: usize,
    kv_heads: usize,
    norms: Option<[Vec<f32>; 2]>,
    /// Raw q, k and v of [`TOKENS`].
    qkv: Vec<f32>,
}

/// What a launch leaves: q of each token, and the whole cache layer.
#[derive(Debug, PartialEq)]
struct Left {
    rows: Vec<u16>,
    kv: Vec<u16>,
}

impl Case {
    fn new(random: &mut Random, head_dim: usize, heads: (usize, usize), norm: bool) -> Self {
        let width = (heads.0 + 2 * heads.1) * head_dim;
        let norms = norm.then(|| [random.bf16s(head_dim), random.bf16s(head_dim)]);
        let qkv = random.bf16s(TOKENS.len() * width).iter().map(|x| x * 4.0).collect();
        Self { head_dim, q_heads: heads.0, kv_heads: heads.1, norms, qkv }
    }

    fn width(&self) -> usize {
        (self.q_heads + 2 * self.kv_heads) * self.head_dim
    }

    fn run(&self, gpu: &Gpu, rope: &RopeTable, chosen: &[usize]) -> Left {
        let (width, stride) = (self.width(), stride_of(self.width()) + 8);
        let qkv: Vec<f32> = chosen.iter().flat_map(|t| self.qkv[t * width..][..width].to_vec()).collect();
        let qkv = gpu.rows(&qkv, width, stride);
        let kv = gpu.buffer(&vec![POISON; PAGES * self.kv_heads * 32 * self.head_dim]);
        let weights = self.norms.as_ref().map(|n| n.each_ref().map(|w| gpu.rows(w, w.len(), w.len())));
        let table: Vec<f32> =
            (0..rope.positions()).flat_map(|p| [rope.at(p).0, rope.at(p).1].concat()).collect();
        let table = gpu.buffer(&table);
        let positions = gpu.buffer(&chosen.iter().map(|t| TOKENS[*t].1).collect::<Vec<_>>());
        let token_row = gpu.buffer(&chosen.iter().map(|t| TOKENS[*t].0).collect::<Vec<_>>());
        let tables = gpu.buffer(&TABLES.concat());
        let rows = gpu.buffer(&[chosen.len() as u32]);
        let args = QkvArgs {
            qkv: qkv.ptr(),
            kv: kv.ptr(),
            q_norm: weights.as_ref().map_or(Ptr::NULL, |w| w[0].ptr()),
            k_norm: weights.as_ref().map_or(Ptr::NULL, |w| w[1].ptr()),
            rope: table.ptr(),
            positions: positions.ptr(),
            token_row: token_row.ptr(),
            tables: tables.ptr(),
            rows: rows.ptr(),
            q_heads: self.q_heads as u32,
            kv_heads: self.kv_heads as u32,
            stride: stride as u32,
            table_stride: 3,
            eps: EPS,
        };
        // SAFETY: the buffers have these shapes.
        unsafe { gpu.kernels.qkv(&gpu.stream, TOKENS.len() as u32, self.head_dim as u32, &args) }.unwrap();
        let all = bits(&gpu.read(&qkv));
        let raw = |t: usize| self.qkv[t * width..][..width].iter().map(|x| bf16::from_f32(*x).to_bits());
        let mut rows = Vec::new();
        for (row, t) in all.chunks(stride).zip(chosen) {
            let q_width = self.q_heads * self.head_dim;
            rows.extend(&row[..q_width]);
            assert!(row[q_width..width].iter().copied().eq(raw(*t).skip(q_width)), "raw k and v");
            assert!(row[width..].iter().all(|x| *x == 0), "beyond the row");
        }
        Left { rows, kv: bits(&gpu.read(&kv)) }
    }

    /// One head of a token after norm and rotation, in f64.
    fn turned(&self, rope: &RopeTable, token: usize, head: usize) -> Vec<f64> {
        let d = self.head_dim;
        let raw = &self.qkv[token * self.width() + head * d..][..d];
        let mut x: Vec<f64> = raw.iter().map(|x| f64::from(*x)).collect();
        if let Some(norms) = &self.norms {
            let weight = &norms[usize::from(head >= self.q_heads)];
            let mean = x.iter().map(|x| x * x).sum::<f64>() / d as f64;
            for (x, w) in x.iter_mut().zip(weight) {
                // Rounded as the model does between norm and rotation; the sum of squares is far from any tie.
                let r = 1.0 / (mean + f64::from(EPS)).sqrt();
                *x = f64::from(round(round((*x * r) as f32) * w));
            }
        }
        let (cos, sin) = rope.at(TOKENS[token].1 as usize);
        let half = d / 2;
        (0..d)
            .map(|i| {
                let (a, b) = (x[i % half], x[i % half + half]);
                let (c, s) = (f64::from(cos[i % half]), f64::from(sin[i % half]));
                if i < half { a * c - b * s } else { b * c + a * s }
            })
            .collect()
    }

    /// Where the cache keeps K (0) or V (1) of a head of a token.
    fn place(&self, token: usize, head: usize, value: usize) -> usize {
        let (row, position) = TOKENS[token];
        let page = TABLES[row as usize][position as usize / 16] as usize;
        (((page * self.kv_heads + head) * 2 + value) * 16 + position as usize % 16) * self.head_dim
    }

    fn check(&self, rope: &RopeTable, left: &Left) {
        let d = self.head_dim;
        let mut untouched = vec![true; left.kv.len()];
        for token in 0..TOKENS.len() {
            for head in 0..self.q_heads + self.kv_heads {
                let expected = self.turned(rope, token, head);
                let found = if head < self.q_heads {
                    &left.rows[(token * self.q_heads + head) * d..][..d]
                } else {
                    let at = self.place(token, head - self.q_heads, 0);
                    untouched[at..at + d].fill(false);
                    &left.kv[at..at + d]
                };
                for i in 0..d {
                    let what = format!("head of {d}, token {token}, head {head}, element {i}");
                    close(bf16::from_bits(found[i]).to_f32(), expected[i], 100.0, &what);
                }
            }
            for head in 0..self.kv_heads {
                let raw = &self.qkv[token * self.width() + (self.q_heads + self.kv_heads + head) * d..][..d];
                let at = self.place(token, head, 1);
                untouched[at..at + d].fill(false);
                let expected: Vec<u16> = raw.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
                assert!(left.kv[at..at + d] == expected, "token {token}, values of head {head}");
            }
        }
        let kept = left.kv.iter().zip(&untouched).all(|(x, u)| !u || *x == POISON.to_bits());
        assert!(kept, "a write to a slot of no fed token");
    }
}

fn rope(head_dim: usize) -> RopeTable {
    let inv_freq: Vec<f32> =
        (0..head_dim / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
    RopeTable::new(&inv_freq, 1.0, 64)
}

#[test]
fn heads_are_normed_rotated_and_cached() {
    let mut random = Random(1);
    let mut cases = Vec::new();
    for head_dim in HEAD_DIMS {
        for (heads, norm) in [((4, 2), true), ((3, 1), false), ((1, 1), true)] {
            cases.push(Case::new(&mut random, head_dim as usize, heads, norm));
        }
    }
    everywhere(|gpu| {
        let mut all = Vec::new();
        for case in &cases {
            let rope = rope(case.head_dim);
            let left = case.run(gpu, &rope, &[0, 1, 2, 3, 4, 5, 6]);
            case.check(&rope, &left);
            all.push(left);
        }
        all
    });
}

#[test]
fn a_token_has_the_same_bits_in_every_batch() {
    let case = Case::new(&mut Random(2), 32, (6, 2), true);
    everywhere(|gpu| {
        let rope = rope(32);
        let together = case.run(gpu, &rope, &[6, 5, 4, 3, 2, 1, 0]);
        for token in 0..TOKENS.len() {
            let alone = case.run(gpu, &rope, &[token]);
            let at = (6 - token) * 6 * 32;
            assert!(alone.rows == together.rows[at..at + 6 * 32], "queries of token {token}");
            for (head, value) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                let at = case.place(token, head, value);
                assert!(alone.kv[at..at + 32] == together.kv[at..at + 32], "cache of token {token}");
            }
        }
    });
}

#[test]
fn unknown_head_sizes_are_refused_by_number() {
    let case = Case::new(&mut Random(3), 16, (1, 1), false);
    everywhere(|gpu| {
        let rows = gpu.buffer(&[0u32]);
        let args = QkvArgs {
            qkv: Ptr::NULL,
            kv: Ptr::NULL,
            q_norm: Ptr::NULL,
            k_norm: Ptr::NULL,
            rope: Ptr::NULL,
            positions: Ptr::NULL,
            token_row: Ptr::NULL,
            tables: Ptr::NULL,
            rows: rows.ptr(),
            q_heads: case.q_heads as u32,
            kv_heads: case.kv_heads as u32,
            stride: 64,
            table_stride: 1,
            eps: EPS,
        };
        // SAFETY: refused before anything is queued.
        let refused = unsafe { gpu.kernels.qkv(&gpu.stream, 1, 96, &args) };
        assert!(refused.unwrap_err().to_string().contains("a head of 96 elements"));
    });
}
