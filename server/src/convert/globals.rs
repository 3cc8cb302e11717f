//! The names that a pickle of a router may hold, each with a fixed meaning. Nothing is looked up or run.

use std::fmt;

use tokenrouter_engine::DType;

/// A name that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    /// `collections.OrderedDict`: read as a dictionary.
    OrderedDict,
    /// `torch._utils._rebuild_tensor_v2`: a tensor over a storage.
    RebuildTensor,
    /// `torch._utils._rebuild_parameter`: the tensor itself.
    RebuildParameter,
    /// `torch.FloatStorage` and its like.
    Storage(StorageType),
    /// `torch.float32` and its like, which old R2R files carry in `init_args.dtype`.
    Dtype,
}

/// What a storage holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StorageType {
    /// Numbers that a weight can be read from.
    Float(DType),
    /// Double precision.
    Double,
    /// Whole numbers of this many bytes (counters); never weights.
    Other(u64),
}

impl StorageType {
    /// Bytes of one value.
    pub(super) fn size(self) -> u64 {
        match self {
            StorageType::Float(dtype) => dtype.size() as u64,
            StorageType::Double => 8,
            StorageType::Other(size) => size,
        }
    }
}

/// Classes of storages in the module `torch`.
const STORAGES: [(&str, StorageType); 10] = [
    ("FloatStorage", StorageType::Float(DType::F32)),
    ("HalfStorage", StorageType::Float(DType::F16)),
    ("BFloat16Storage", StorageType::Float(DType::Bf16)),
    ("DoubleStorage", StorageType::Double),
    ("LongStorage", StorageType::Other(8)),
    ("IntStorage", StorageType::Other(4)),
    ("ShortStorage", StorageType::Other(2)),
    ("CharStorage", StorageType::Other(1)),
    ("ByteStorage", StorageType::Other(1)),
    ("BoolStorage", StorageType::Other(1)),
];

impl Global {
    /// The meaning of `module.name`.
    ///
    /// # Errors
    /// When it has none here: the error names it.
    pub(super) fn named(module: &str, name: &str) -> Result<Self, String> {
        match (module, name) {
            ("collections", "OrderedDict") => Ok(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Ok(Global::RebuildTensor),
            ("torch._utils", "_rebuild_parameter") => Ok(Global::RebuildParameter),
            ("torch", "float32" | "float64" | "float16" | "bfloat16") => Ok(Global::Dtype),
            ("torch", storage) => STORAGES
                .iter()
                .find(|(n, _)| *n == storage)
                .map(|(_, kind)| Global::Storage(*kind))
                .ok_or_else(|| refuse(module, name)),
            _ => Err(refuse(module, name)),
        }
    }
}

fn refuse(module: &str, name: &str) -> String {
    let full: String = format!("{module}.{name}").chars().take(120).flat_map(char::escape_debug).collect();
    format!("names {full}, which no router file needs; nothing of the file was run")
}

impl fmt::Display for Global {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Global::OrderedDict => "collections.OrderedDict",
            Global::RebuildTensor => "torch._utils._rebuild_tensor_v2",
            Global::RebuildParameter => "torch._utils._rebuild_parameter",
            Global::Storage(_) => "a torch storage",
            Global::Dtype => "a torch dtype",
        })
    }
}
