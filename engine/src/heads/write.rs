//! Writing router files: what the converters and the trainers' exports make.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use super::RouterFile;
use super::file::{DESCRIPTION, WEIGHTS};
use crate::error::LoadError;

/// A tensor to be written, in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Its name in the file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values, row-major.
    pub values: Vec<f32>,
}

/// Writes `router.json` and `router.safetensors` into the folder `dir`, which is made if it is not there. Each file
/// appears whole or not at all.
///
/// # Errors
/// A [`LoadError`] naming the file, when a tensor's values do not fit its shape or the file cannot be written.
pub fn write_router(dir: &Path, file: &RouterFile, tensors: &[NamedTensor]) -> Result<(), LoadError> {
    let weights = dir.join(WEIGHTS);
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|t| t.values.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, bytes)| {
            let view = TensorView::new(Dtype::F32, t.shape.clone(), bytes)
                .map_err(|e| LoadError::field(&weights, t.name.as_str(), e.to_string()))?;
            Ok((t.name.as_str(), view))
        })
        .collect::<Result<Vec<_>, LoadError>>()?;
    let data = safetensors::serialize(views, None)
        .map_err(|e| LoadError::file(&weights, format!("cannot be made: {e}")))?;
    std::fs::create_dir_all(dir).map_err(|e| LoadError::file(dir, format!("cannot be made: {e}")))?;
    put(&weights, &data)?;
    let text = format!("{:#}\n", file.to_json());
    put(&dir.join(DESCRIPTION), text.as_bytes())
}

/// Writes beside the place and renames: a mapped file must never be changed where it is.
fn put(path: &Path, data: &[u8]) -> Result<(), LoadError> {
    let failed = |e: std::io::Error| LoadError::file(path, format!("cannot be written: {e}"));
    let beside = path.with_extension("new");
    std::fs::write(&beside, data).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)
}
