//! Instruction set selection.

use std::sync::OnceLock;

use super::Registers;

/// Instruction sets with a code path of their own. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX2 and the F, VL, BW and DQ parts of AVX-512.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// Plain Rust, any processor.
    Portable,
}

/// The environment variable that forces a path: `portable`, `avx2` or `avx512`.
const OVERRIDE: &str = "TOKENROUTER_CPU_ISA";

impl Isa {
    /// The best supported set, or the one that `TOKENROUTER_CPU_ISA` forces.
    ///
    /// # Errors
    /// A text that says what would be right, when the variable names an unknown set or one that
    /// this processor lacks.
    pub fn detect() -> Result<Isa, String> {
        match std::env::var_os(OVERRIDE) {
            None => Ok(Isa::fastest()),
            Some(value) => Isa::parse(&value.to_string_lossy()),
        }
    }

    /// The best set that this processor supports; the environment is not asked.
    pub fn fastest() -> Isa {
        [Isa::Avx512, Isa::Avx2].into_iter().find(|isa| isa.supported()).unwrap_or(Isa::Portable)
    }

    /// Whether this processor can run the set.
    pub fn supported(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Avx2 => avx2_supported(),
            Isa::Avx512 => avx512_supported(),
        }
    }

    /// The name that the environment variable uses.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    /// The registers that kernels of this set find; those of the portable path when it is not supported.
    pub(super) fn registers(self) -> Registers {
        match self {
            Isa::Avx512 if self.supported() => Registers::ThirtyTwo,
            Isa::Avx2 if self.supported() => Registers::Sixteen,
            _ => Registers::Unknown,
        }
    }

    /// Whether products of this set gain by laying activations side by side, two to a register, and crossing weights: on
    /// AMD's processors. They load eight values into both halves of a register on a port that multiplies: on Zen 5 eight
    /// activations go at 120 GFLOP/s that way and at 262 side by side, of 266. On Intel's such a load costs nothing beside it,
    /// and crossing weights takes a port that multiplies.
    pub(super) fn crosses(self) -> bool {
        static AMD: OnceLock<bool> = OnceLock::new();
        self.registers() == Registers::ThirtyTwo && *AMD.get_or_init(amd)
    }

    fn parse(value: &str) -> Result<Isa, String> {
        let isa = match value {
            "avx512" => Isa::Avx512,
            "avx2" => Isa::Avx2,
            "portable" => Isa::Portable,
            other => return Err(format!("{OVERRIDE}={other}: unknown, use `avx512`, `avx2` or `portable`")),
        };
        if isa.supported() {
            Ok(isa)
        } else {
            let lacks =
                if isa == Isa::Avx2 { "AVX2, FMA or F16C" } else { "AVX2 or AVX-512 (F, VL, BW, DQ)" };
            let right = Isa::fastest().name();
            Err(format!("{OVERRIDE}={value}: this processor lacks {lacks}; use `{right}`"))
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2_supported() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn avx512_supported() -> bool {
    avx2_supported()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
}

#[cfg(target_arch = "x86_64")]
fn amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn amd() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn avx2_supported() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn avx512_supported() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_unknown_names_are_explained() {
        assert_eq!(Isa::parse("portable"), Ok(Isa::Portable));
        let message = Isa::parse("avx9").unwrap_err();
        assert!(message.contains("avx9") && message.contains("portable"), "{message}");
        for isa in [Isa::Avx512, Isa::Avx2] {
            if isa.supported() {
                assert_eq!(Isa::parse(isa.name()), Ok(isa));
            } else {
                assert!(Isa::parse(isa.name()).unwrap_err().contains(Isa::fastest().name()));
            }
        }
    }
}
