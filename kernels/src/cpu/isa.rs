//! Instruction set selection.

/// Instruction sets with a code path of their own. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// Plain Rust, any processor.
    Portable,
}

/// The environment variable that forces a path: `portable` or `avx2`.
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
        if Isa::Avx2.supported() { Isa::Avx2 } else { Isa::Portable }
    }

    /// Whether this processor can run the set.
    pub fn supported(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Avx2 => avx2_supported(),
        }
    }

    /// The name that the environment variable uses.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    fn parse(value: &str) -> Result<Isa, String> {
        let isa = match value {
            "avx2" => Isa::Avx2,
            "portable" => Isa::Portable,
            other => return Err(format!("{OVERRIDE}={other}: unknown, use `avx2` or `portable`")),
        };
        if isa.supported() {
            Ok(isa)
        } else {
            Err(format!("{OVERRIDE}={value}: this processor lacks AVX2, FMA or F16C; use `portable`"))
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2_supported() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(not(target_arch = "x86_64"))]
fn avx2_supported() -> bool {
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
        if Isa::Avx2.supported() {
            assert_eq!(Isa::parse("avx2"), Ok(Isa::Avx2));
        } else {
            assert!(Isa::parse("avx2").unwrap_err().contains("portable"));
        }
    }
}
