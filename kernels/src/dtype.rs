//! Storage types of weights and of the KV cache.

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
}

#[cfg(test)]
mod tests {
    use super::*;

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
