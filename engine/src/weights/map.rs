//! One safetensors file, mapped, with its header checked against the file's size.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensors};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::WeightRef;

use crate::error::LoadError;

/// A mapped file and where its tensors lie.
pub(crate) struct MappedFile {
    pub(crate) path: PathBuf,
    pub(crate) tensors: HashMap<String, Entry>,
    map: Arc<Storage>,
}

/// Where a tensor's bytes are kept.
enum Storage {
    Map(Mmap),
    Own(Vec<u8>),
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Map(map) => map,
            Self::Own(bytes) => bytes,
        }
    }
}

/// One tensor as the header describes it; the range is inside the file.
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    start: usize,
    end: usize,
}

impl MappedFile {
    /// Maps `path` and reads its header.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let failed = |what: &str, e: &dyn std::fmt::Display| LoadError::file(path, format!("{what}: {e}"));
        let file = File::open(path).map_err(|e| failed("cannot be opened", &e))?;
        let meta = file.metadata().map_err(|e| failed("cannot be examined", &e))?;
        if !meta.is_file() {
            return Err(LoadError::file(path, "is not a regular file"));
        }
        if meta.len() < 8 {
            let problem = format!("has {} bytes: empty or cut off, not a safetensors file", meta.len());
            return Err(LoadError::file(path, problem));
        }
        // SAFETY: the map is read-only and only ever read as plain bytes, for which every bit pattern is
        // valid. The one hazard left is another process that writes to or truncates the file while it is
        // mapped: changed bytes give wrong numbers and a truncated page raises SIGBUS. Checkpoints must
        // be replaced by renaming a new file into place, never edited in place, as for any mapped loader.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| failed("cannot be mapped", &e))?;
        let (header_len, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|e| failed("is truncated or its safetensors header is wrong", &e))?;
        // The reader has checked that the header ends inside the file, that the tensors' ranges follow
        // one another without gap or overlap, fit shape and type, and end with the file.
        let data = 8 + header_len;
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let (start, end) = (data + info.data_offsets.0, data + info.data_offsets.1);
            (name, Entry { dtype: info.dtype, shape: info.shape.clone(), start, end })
        });
        Ok(Self { path: path.to_path_buf(), tensors: tensors.collect(), map: Arc::new(Storage::Map(map)) })
    }

    /// The tensor `name` as a matrix of exactly `shape` (a vector is one row), of a type we compute with. `asker` is the
    /// file that says so.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize], asker: &str) -> Result<Tensor, LoadError> {
        let wrong = |problem: String| LoadError::field(&self.path, name, problem);
        let entry = self.tensors.get(name).ok_or_else(|| wrong("is missing".to_owned()))?;
        if entry.shape != shape {
            return Err(wrong(format!("has shape {:?}, {asker} asks for {shape:?}", entry.shape)));
        }
        let dtype = match entry.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::Bf16,
            other => return Err(wrong(format!("has type {other:?}, supported are F32, F16 and BF16"))),
        };
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().product::<usize>() / cols.max(1);
        let tensor = Tensor { map: self.map.clone(), start: entry.start, end: entry.end, dtype, rows, cols };
        tensor.check().map_err(wrong)?;
        Ok(tensor)
    }
}

/// A weight matrix in a mapped file, or one computed at load. Clones share it.
#[derive(Clone)]
pub struct Tensor {
    map: Arc<Storage>,
    start: usize,
    end: usize,
    dtype: DType,
    rows: usize,
    cols: usize,
}

impl Tensor {
    /// A matrix computed at load: `values` are its rows of `cols`, one after the other.
    pub(crate) fn computed(values: &[f32], cols: usize) -> Self {
        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let rows = values.len() / cols.max(1);
        // What `check` proves for tensors of files holds here by construction: rows * cols values.
        let end = rows * cols * DType::F32.size();
        Self { map: Arc::new(Storage::Own(data)), start: 0, end, dtype: DType::F32, rows, cols }
    }

    /// Rows `range` of this matrix, at the same place in memory.
    ///
    /// # Panics
    /// When there are no such rows: borders come from a checked configuration.
    pub(crate) fn row_range(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let row = self.cols * self.dtype.size();
        let start = self.start + range.start * row;
        // The bytes lie in those of the whole matrix, and there are as many as the shape needs.
        Self { start, end: start + range.len() * row, rows: range.len(), ..self.clone() }
    }

    /// Columns `range` of this matrix, copied.
    ///
    /// # Panics
    /// When there are no such columns: borders come from a checked configuration.
    pub(crate) fn col_range(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.cols, "columns {range:?} of {}", self.cols);
        let (size, cols) = (self.dtype.size(), range.len());
        let mut data = Vec::with_capacity(self.rows * cols * size);
        for row in self.view().data().chunks_exact(self.cols * size) {
            data.extend_from_slice(&row[range.start * size..range.end * size]);
        }
        // What `check` proves for tensors of files holds here by construction: rows * cols values.
        let end = data.len();
        Self { map: Arc::new(Storage::Own(data)), start: 0, end, cols, ..*self }
    }

    /// The index of the first value that is NaN or infinite.
    pub(crate) fn first_not_finite(&self) -> Option<usize> {
        let data = self.view().data();
        match self.dtype {
            DType::F32 => data
                .chunks_exact(4)
                .position(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7f80_0000 == 0x7f80_0000),
            DType::F16 => half_not_finite(data, 0x7c00),
            DType::Bf16 => half_not_finite(data, 0x7f80),
        }
    }

    /// The matrix as the kernels read it: bytes of the file, of any alignment.
    pub fn view(&self) -> WeightRef<'_> {
        WeightRef::new(self.dtype, self.rows, self.cols, &self.map.bytes()[self.start..self.end])
            .expect("`check` or `computed` has seen to it that the bytes fit the shape")
    }

    /// Rows: outputs of a linear layer, entries of an embedding, 1 for a vector.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs of a linear layer, length of a vector.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        (self.end - self.start) as u64
    }

    /// Tells the system that this place of the file need not stay in memory: it is read again when it is asked for.
    pub(crate) fn forget(&self) {
        #[cfg(unix)]
        if let Storage::Map(map) = &*self.map {
            use memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is of a file and nobody writes to it, so what is dropped comes back as it was; see
            // `MappedFile::open` about files that change.
            let done = unsafe { map.unchecked_advise_range(DontNeed, self.start, self.end - self.start) };
            // A system that keeps the pages has more memory in use than it must; nothing is wrong.
            let _ = done;
        }
    }

    /// Proves that [`Self::view`] cannot fail.
    fn check(&self) -> Result<(), String> {
        let data = self.map.bytes().get(self.start..self.end).ok_or("lies outside the file")?;
        WeightRef::new(self.dtype, self.rows, self.cols, data).map(|_| ()).map_err(|e| e.to_string())
    }
}

/// The first two-byte value whose exponent bits are all ones.
fn half_not_finite(data: &[u8], exponent: u16) -> Option<usize> {
    data.chunks_exact(2).position(|b| u16::from_le_bytes([b[0], b[1]]) & exponent == exponent)
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?} [{}, {}] at {})", self.dtype, self.rows, self.cols, self.start)
    }
}
