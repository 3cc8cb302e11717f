//! The tensors of a router file, each taken once, and none left over.

use std::collections::HashSet;
use std::path::Path;

use super::file::{DESCRIPTION, WEIGHTS};
use crate::error::LoadError;
use crate::weights::{Linear, MappedFile, Norm, Tensor};

/// An opened `router.safetensors`.
pub(super) struct Tensors {
    file: MappedFile,
    taken: HashSet<String>,
}

impl Tensors {
    pub(super) fn open(dir: &Path) -> Result<Self, LoadError> {
        Ok(Self { file: MappedFile::open(&dir.join(WEIGHTS))?, taken: HashSet::new() })
    }

    /// The tensor `name`, of exactly this shape, every value finite.
    pub(super) fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        if !self.file.tensors.contains_key(name) {
            let problem = format!("is missing; {DESCRIPTION} asks for it with shape {shape:?}");
            return Err(LoadError::field(&self.file.path, name, problem));
        }
        let tensor = self.file.tensor(name, shape, DESCRIPTION)?;
        if let Some(at) = tensor.first_not_finite() {
            let problem = format!("holds a NaN or infinity (value {at}): the training has diverged");
            return Err(LoadError::field(&self.file.path, name, problem));
        }
        self.taken.insert(name.to_owned());
        Ok(tensor)
    }

    /// `name.weight` and `name.bias` of a matrix.
    pub(super) fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Linear, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        Ok(Linear::new(weight, Some(self.tensor(&format!("{name}.bias"), &[outputs])?)))
    }

    /// `name.weight` and `name.bias` of a norm.
    pub(super) fn norm(&mut self, name: &str, width: usize) -> Result<Norm, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[width])?;
        let bias = self.tensor(&format!("{name}.bias"), &[width])?;
        if weight.dtype() != bias.dtype() {
            let problem = format!("has type {:?}, its weight {:?}", bias.dtype(), weight.dtype());
            return Err(LoadError::field(&self.file.path, format!("{name}.bias"), problem));
        }
        Ok(Norm { weight, bias })
    }

    /// An error about one tensor.
    pub(super) fn error(&self, name: &str, problem: impl Into<String>) -> LoadError {
        LoadError::field(&self.file.path, name, problem)
    }

    /// Refuses tensors that nobody took: they would mean another network.
    pub(super) fn finish(self) -> Result<(), LoadError> {
        let mut rest: Vec<&String> = self.file.tensors.keys().filter(|n| !self.taken.contains(*n)).collect();
        rest.sort();
        match rest.first() {
            None => Ok(()),
            Some(first) => {
                let problem =
                    format!("is surplus ({} in all): {DESCRIPTION} describes a head without it", rest.len());
                Err(LoadError::field(&self.file.path, first.as_str(), problem))
            }
        }
    }
}
