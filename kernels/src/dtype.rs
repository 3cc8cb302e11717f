//! Storage types of weights and of the KV cache.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// How numbers are stored. Arithmetic is always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision, 4 bytes.
    F32,
    /// IEEE half precision, 2 bytes, largest finite value 65504.
    F16,
    /// The upper half of a single, 2 bytes.
    Bf16,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }

    /// The name used in configuration files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }

    /// `x` after a store in this type and a load back (round to nearest, ties to even).
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// Element `index` of little-endian `data`.
    ///
    /// # Panics
    /// When `data` is too short.
    pub fn read(self, data: &[u8], index: usize) -> f32 {
        let at = index * self.size();
        match self {
            DType::F32 => f32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]),
            DType::F16 => f16::from_le_bytes([data[at], data[at + 1]]).to_f32(),
            DType::Bf16 => bf16::from_le_bytes([data[at], data[at + 1]]).to_f32(),
        }
    }

    /// Stores `x` as element `index` of little-endian `data`.
    ///
    /// # Panics
    /// When `data` is too short.
    pub fn write(self, data: &mut [u8], index: usize, x: f32) {
        let at = index * self.size();
        match self {
            DType::F32 => data[at..at + 4].copy_from_slice(&x.to_le_bytes()),
            DType::F16 => data[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            DType::Bf16 => data[at..at + 2].copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        }
    }

    /// Stores `values` as the little-endian elements of `data`.
    ///
    /// # Panics
    /// When `data` is not as long as `values` in this type.
    pub fn write_all(self, data: &mut [u8], values: &[f32]) {
        assert_eq!(data.len(), values.len() * self.size(), "bytes of {} values", values.len());
        match self {
            DType::F32 => {
                for (data, x) in data.chunks_exact_mut(4).zip(values) {
                    data.copy_from_slice(&x.to_le_bytes());
                }
            }
            DType::F16 => {
                write_halves(data, values, f16::to_le_bytes, |to, from| to.convert_from_f32_slice(from))
            }
            DType::Bf16 => {
                write_halves(data, values, bf16::to_le_bytes, |to, from| to.convert_from_f32_slice(from))
            }
        }
    }
}

/// Stores `values` as little-endian halves, converted many at a time.
fn write_halves<T: Copy + Default>(
    data: &mut [u8],
    values: &[f32],
    bytes: fn(T) -> [u8; 2],
    convert: fn(&mut [T], &[f32]),
) {
    const MANY: usize = 64;
    for (data, values) in data.chunks_mut(2 * MANY).zip(values.chunks(MANY)) {
        let mut halves = [T::default(); MANY];
        convert(&mut halves[..values.len()], values);
        for (data, half) in data.chunks_exact_mut(2).zip(halves) {
            data.copy_from_slice(&bytes(half));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_stored_as_one_by_one() {
        let values: Vec<f32> = (0..131).map(|i| (i as f32 - 65.3) * 1.7e-3 * 1.3f32.powi(i % 40)).collect();
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let (mut many, mut single) = (vec![0; 131 * dtype.size()], vec![0; 131 * dtype.size()]);
            dtype.write_all(&mut many, &values);
            values.iter().enumerate().for_each(|(i, x)| dtype.write(&mut single, i, *x));
            assert_eq!(many, single, "{dtype:?}");
        }
    }

    #[test]
    fn round_is_a_store_and_a_load() {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            for x in [0.0f32, -0.0, 1.0, 1.003_906_3, -3.2, 6.1e-5, 5.9e-8, 65504.0, f32::INFINITY] {
                let mut bytes = [0u8; 12];
                dtype.write(&mut bytes, 2, x);
                assert_eq!(dtype.read(&bytes, 2).to_bits(), dtype.round(x).to_bits(), "{dtype:?} {x}");
            }
            assert!(dtype.round(f32::NAN).is_nan());
        }
        assert_eq!(DType::Bf16.round(1.003_906_3), 1.0, "ties go to even");
        assert_eq!(DType::F16.round(70000.0), f32::INFINITY);
    }
}
