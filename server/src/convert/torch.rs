//! A torch file: a zip container with a pickle (`<name>/data.pkl`) and one entry for each storage (`<name>/data/<key>`).

use std::path::{Path, PathBuf};

use tokenrouter_engine::heads::NamedTensor;

use super::globals::StorageType;
use super::pickle::{Pickle, Value};
use super::zip::Zip;

/// Pickles larger than this describe no router: an R2R file's has 20 KiB.
const MOST_PICKLE: u64 = 16 << 20;

/// An opened torch file.
pub(super) struct TorchFile {
    path: PathBuf,
    zip: Zip,
    /// What stands before every entry's name.
    prefix: String,
}

impl TorchFile {
    /// Opens `path`; returns the file and its pickle, to be given to [`Pickle::read`].
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<u8>), String> {
        let named = |e: String| format!("{}: {e}", path.display());
        let mut zip = Zip::open(path).map_err(named)?;
        let mut pickles: Vec<String> =
            zip.names().filter(|n| n.ends_with("/data.pkl")).map(str::to_owned).collect();
        let (Some(pickle), None) = (pickles.pop(), pickles.pop()) else {
            return Err(named("holds no single data.pkl: not a file that torch.save wrote".into()));
        };
        let prefix = pickle.trim_end_matches("data.pkl").to_owned();
        let order = format!("{prefix}byteorder");
        if zip.size(&order).is_some_and(|n| n <= 16) && zip.entry(&order).map_err(named)? != b"little" {
            return Err(named("was written on a big-endian machine".into()));
        }
        let size = zip.size(&pickle).unwrap_or(0);
        if size > MOST_PICKLE {
            return Err(named(format!("has a pickle of {size} bytes, at most {MOST_PICKLE} are read")));
        }
        let data = zip.entry(&pickle).map_err(named)?;
        Ok((Self { path: path.to_owned(), zip, prefix }, data))
    }

    /// Reads its pickle.
    pub(super) fn parse<'a>(&self, data: &'a [u8]) -> Result<Pickle<'a>, String> {
        Pickle::read(data).map_err(|e| format!("{}: the pickle, {e}", self.path.display()))
    }

    /// An error about a part of the file.
    pub(super) fn error(&self, field: &str, problem: impl std::fmt::Display) -> String {
        format!("{}: {field}: {problem}", self.path.display())
    }

    /// The values of a tensor in single precision.
    pub(super) fn tensor(
        &mut self,
        pickle: &Pickle<'_>,
        name: &str,
        value: Value<'_>,
    ) -> Result<NamedTensor, String> {
        let tensor = pickle.tensor(value).ok_or_else(|| self.error(name, "is no tensor"))?.clone();
        let count = tensor.shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        let count = count.ok_or_else(|| self.error(name, "has sizes that overflow"))?;
        if !is_contiguous(&tensor.shape, &tensor.strides) {
            let problem = format!(
                "has shape {:?} and strides {:?}: a view; only whole tensors are read",
                tensor.shape, tensor.strides
            );
            return Err(self.error(name, problem));
        }
        let storage = tensor.storage;
        let end = tensor.offset.checked_add(count as u64).filter(|end| *end <= storage.len);
        let bytes = end.and_then(|end| end.checked_mul(storage.kind.size()));
        let entry = format!("{}data/{}", self.prefix, storage.key);
        let held = self
            .zip
            .size(&entry)
            .ok_or_else(|| self.error(name, format!("its storage {entry:?} is missing")))?;
        if bytes.is_none_or(|bytes| bytes > held) {
            return Err(self.error(name, format!("reaches beyond its storage of {held} bytes")));
        }
        let data = self.zip.entry(&entry).map_err(|e| self.error(name, e))?;
        let first = tensor.offset as usize;
        let values = match storage.kind {
            StorageType::Float(dtype) => (first..first + count).map(|i| dtype.read(&data, i)).collect(),
            StorageType::Double => data[first * 8..(first + count) * 8]
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32)
                .collect(),
            StorageType::Other(_) => return Err(self.error(name, "holds whole numbers, not weights")),
        };
        Ok(NamedTensor { name: name.to_owned(), shape: tensor.shape, values })
    }
}

/// Whether the values lie one after the other. A dimension of one may have any stride.
fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut step = 1usize;
    shape.iter().zip(strides).rev().all(|(size, stride)| {
        let fits = *size <= 1 || *stride == step;
        step = step.saturating_mul(*size);
        fits
    })
}
