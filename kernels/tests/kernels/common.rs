//! Helpers of the kernel tests.

use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{Ctx, Isa, WeightRef, WorkerGroup};

pub(crate) const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
pub(crate) const ISAS: [Isa; 3] = [Isa::Avx512, Isa::Avx2, Isa::Portable];

/// A small deterministic generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51afd7ed558ccd) ^ (x >> 29)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// Between -1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// Weight bytes, at an odd address.
pub(crate) struct Weights {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
    shift: usize,
}

impl Weights {
    pub(crate) fn new(dtype: DType, rows: usize, cols: usize, values: &[f32]) -> Weights {
        let len = rows * cols * dtype.size();
        let mut bytes = vec![0xff; len + 8];
        let shift = (0..4).find(|s| (bytes.as_ptr() as usize + s) % 2 == 1).unwrap_or(1);
        for (i, x) in values.iter().enumerate() {
            dtype.write(&mut bytes[shift..shift + len], i, *x);
        }
        Weights { dtype, rows, cols, bytes, shift }
    }

    pub(crate) fn random(random: &mut Random, dtype: DType, rows: usize, cols: usize) -> Weights {
        let values = random.vec(rows * cols);
        Weights::new(dtype, rows, cols, &values)
    }

    pub(crate) fn get(&self) -> WeightRef<'_> {
        let len = self.rows * self.cols * self.dtype.size();
        WeightRef::new(self.dtype, self.rows, self.cols, &self.bytes[self.shift..self.shift + len]).unwrap()
    }

    pub(crate) fn value(&self, i: usize) -> f64 {
        f64::from(self.dtype.read(&self.bytes[self.shift..], i))
    }
}

/// Runs `body` on each instruction set with each number of threads.
pub(crate) fn everywhere(threads: &[usize], mut body: impl FnMut(Ctx<'_>)) {
    for n in threads {
        let workers = WorkerGroup::new("test", *n).unwrap();
        for isa in ISAS {
            body(Ctx { isa, workers: &workers });
        }
    }
}

#[track_caller]
pub(crate) fn same_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(same, "{what}: element {i} is {a:e}, expected {b:e}");
    }
}
