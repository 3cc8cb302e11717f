//! `device` and `[cuda]`: what the models run on.

use serde::Deserialize;
use tokenrouter_engine::{CudaOptions, DType, DeviceKind};

use super::{Config, parse_bytes};

/// Kinds of devices, as they are written in the file and on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DeviceName {
    /// The processor.
    #[default]
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
}

impl DeviceName {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DeviceName::Cpu => "cpu",
            DeviceName::Cuda => "cuda",
        }
    }
}

/// How GPUs are used.
#[derive(Clone, Debug, Deserialize)]
pub struct CudaSection {
    /// Share of each device's memory that may be used, above 0 and at most 1.
    pub memory_fraction: f64,
    /// Bytes to use on each device instead. A number, or text like `"16GiB"`.
    pub memory: Option<toml::Value>,
    /// Whether steps run from graphs captured at the start.
    pub graphs: bool,
    /// Tokens of the largest captured step: a power of two from 8 on.
    pub largest_bucket: u32,
}

/// A byte count from a number or a text.
pub(super) fn bytes(key: &str, value: &toml::Value) -> Result<u64, String> {
    match value {
        toml::Value::Integer(n) => {
            u64::try_from(*n).map_err(|_| format!("{key} is {n}; it must be positive"))
        }
        toml::Value::String(text) => parse_bytes(text).map_err(|e| format!("{key}: {e}")),
        other => Err(format!("{key} is {other}; a byte count like \"2GiB\" is needed")),
    }
}

impl CudaSection {
    fn options(&self) -> Result<CudaOptions, String> {
        let memory_bytes = self.memory.as_ref().map(|value| bytes("cuda.memory", value)).transpose()?;
        let bucket = self.largest_bucket;
        if !(bucket.is_power_of_two() && (8..=4096).contains(&bucket)) {
            return Err(format!("cuda.largest_bucket is {bucket}; it must be a power of two from 8 to 4096"));
        }
        Ok(CudaOptions {
            memory_fraction: self.memory_fraction,
            memory_bytes,
            graphs: self.graphs,
            largest_bucket: bucket,
            ..CudaOptions::default()
        })
    }
}

impl Config {
    /// What the models run on.
    ///
    /// # Errors
    /// A key of `[cuda]` out of range.
    pub fn device_kind(&self) -> Result<DeviceKind, String> {
        let options = self.cuda.options()?;
        Ok(match self.device {
            DeviceName::Cpu => DeviceKind::Cpu,
            DeviceName::Cuda => DeviceKind::Cuda(options),
        })
    }

    /// Another device than the file says, as the command line may.
    ///
    /// # Errors
    /// When the rest of the file does not fit it.
    pub fn on_device(&mut self, device: Option<DeviceName>) -> Result<(), String> {
        self.device = device.unwrap_or(self.device);
        self.kv_dtype().map(|_| ())
    }

    /// The type of the KV cache: by default f16 on the CPU; on GPUs bf16, and no other.
    ///
    /// # Errors
    /// An unknown type, or one that the device does not have.
    pub fn kv_dtype(&self) -> Result<DType, String> {
        let dtype = match self.budget.kv_dtype.as_deref() {
            None if self.device == DeviceName::Cuda => DType::Bf16,
            None | Some("f16") => DType::F16,
            Some("f32") => DType::F32,
            Some("bf16") => DType::Bf16,
            Some(other) => {
                return Err(format!("budget.kv_dtype is \"{other}\"; it must be f32, f16 or bf16"));
            }
        };
        if self.device == DeviceName::Cuda && dtype != DType::Bf16 {
            let found = self.budget.kv_dtype.as_deref().unwrap_or_default();
            return Err(format!(
                "budget.kv_dtype is \"{found}\"; on CUDA the cache is bf16: leave the key out"
            ));
        }
        Ok(dtype)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(top: &str, model: &str, rest: &str) -> Result<Config, String> {
        let text = format!(
            "{top}\n[[model]]\nname = \"small\"\npath = \"slm\"\n{model}\n[router]\nname = \"single\"\nmodel = 0\n{rest}"
        );
        Config::parse(&text, Path::new(""))
    }

    #[test]
    fn the_processor_is_the_default_and_the_command_line_wins() {
        let mut config = parse("", "", "").expect("good");
        assert_eq!((config.device, config.models[0].devices.as_slice()), (DeviceName::Cpu, &[0][..]));
        assert_eq!((config.device_kind(), config.kv_dtype()), (Ok(DeviceKind::Cpu), Ok(DType::F16)));
        config.on_device(Some(DeviceName::Cuda)).expect("nothing stands against it");
        assert_eq!(config.kv_dtype(), Ok(DType::Bf16));
        assert_eq!(config.device_kind(), Ok(DeviceKind::Cuda(CudaOptions::default())));

        let mut config = parse("device = \"cuda\"", "devices = [1, 0]", "").expect("good");
        assert_eq!(config.models[0].devices, [1, 0]);
        config.on_device(None).expect("as the file says");
        assert_eq!(config.device, DeviceName::Cuda);
        config.on_device(Some(DeviceName::Cpu)).expect("the command line");
        assert_eq!(config.device_kind(), Ok(DeviceKind::Cpu));
    }

    #[test]
    fn the_section_is_read() {
        let rest = "[cuda]\nmemory_fraction = 0.5\nmemory = \"2GiB\"\ngraphs = false\nlargest_bucket = 64";
        let config = parse("device = \"cuda\"", "", rest).expect("good");
        let expected = CudaOptions {
            memory_fraction: 0.5,
            memory_bytes: Some(2 << 30),
            graphs: false,
            largest_bucket: 64,
            ..CudaOptions::default()
        };
        assert_eq!(config.device_kind(), Ok(DeviceKind::Cuda(expected)));
    }

    #[test]
    fn bad_devices_are_refused_by_key() {
        let cases = [
            ("device = \"tpu\"", "", "", "device"),
            ("devise = \"cpu\"", "", "", "did you mean \"device\""),
            ("", "devices = []", "", "model \"small\": devices is empty"),
            ("", "devices = [2, 2]", "", "model \"small\": devices names device 2 twice"),
            ("", "devices = [70]", "", "model \"small\": devices names device 70"),
            ("", "devices = [-1]", "", "devices"),
            ("", "device = [0]", "", "did you mean \"devices\""),
            ("", "", "[cuda]\nmemory_fraction = 0.0", "cuda.memory_fraction is 0"),
            ("", "", "[cuda]\nmemory_fraction = 1.01", "cuda.memory_fraction is 1.01"),
            ("", "", "[cuda]\nmemory_fraction = nan", "cuda.memory_fraction"),
            ("", "", "[cuda]\nmemory = \"lots\"", "cuda.memory"),
            ("", "", "[cuda]\nmemory = 0", "cuda.memory is 0"),
            ("", "", "[cuda]\nlargest_bucket = 100", "cuda.largest_bucket is 100"),
            ("", "", "[cuda]\nlargest_bucket = 4", "cuda.largest_bucket is 4"),
            ("", "", "[cuda]\ngraph = true", "did you mean \"graphs\""),
            ("device = \"cuda\"", "", "[budget]\nkv_dtype = \"f16\"", "on CUDA the cache is bf16"),
        ];
        for (top, model, rest, expected) in cases {
            let error = parse(top, model, rest).expect_err(expected);
            assert!(error.contains(expected), "{top}{model}{rest}: {error}");
        }
        let mut config = parse("", "", "[budget]\nkv_dtype = \"f32\"").expect("good on the CPU");
        let error = config.on_device(Some(DeviceName::Cuda)).expect_err("f32 on CUDA");
        assert!(error.contains("\"f32\""), "{error}");
    }
}
