//! The paged KV cache of one model.
//!
//! Layout: page, layer, K or V, kv head, and then the vectors of the page's sixteen slots: values one after the other,
//! `[slot][element]`; keys side by side, `[element][slot]`, so that attention finds one element of sixteen keys in one
//! register. A page is one piece of memory, so pages that were never used cost nothing.

use super::PAGE_TOKENS;
use crate::DType;
use memmap2::MmapMut;

/// Shape of a [`KvArena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Storage type.
    pub dtype: DType,
    /// Pages of 16 tokens.
    pub pages: usize,
}

impl KvLayout {
    /// Bytes of one page: all layers, K and V. `None` when the number does not fit a usize.
    pub fn bytes_per_page(&self) -> Option<usize> {
        [2, self.kv_heads, PAGE_TOKENS, self.head_dim, self.dtype.size()]
            .into_iter()
            .try_fold(self.layers, usize::checked_mul)
    }

    /// Bytes of the arena. `None` when the number does not fit a usize.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes_per_page()?.checked_mul(self.pages)
    }
}

/// The arena could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvError {
    /// The shape does not fit the address space.
    TooLarge(KvLayout),
    /// The system refused this many bytes.
    OutOfMemory(usize),
}

impl std::fmt::Display for KvError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KvError::TooLarge(layout) => write!(f, "a KV cache of shape {layout:?} is too large to address"),
            KvError::OutOfMemory(bytes) => write!(f, "no memory for a KV cache of {bytes} bytes"),
        }
    }
}

impl std::error::Error for KvError {}

/// Which half of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Key = 0,
    Value = 1,
}

/// Elements of a key that are turned into the storage type at a time.
const PIECE: usize = 64;

/// The memory of a paged KV cache.
pub struct KvArena {
    layout: KvLayout,
    start: *mut u8,
    /// Keeps the memory at `start`.
    memory: MmapMut,
}

// SAFETY: the arena owns its memory; shared access reads only, writes need `&mut self`.
unsafe impl Send for KvArena {}
// SAFETY: as above.
unsafe impl Sync for KvArena {}

impl KvArena {
    /// Reserves the arena. The system supplies zeroed memory when a page is first touched, in large pages where it can:
    /// the vectors of one head lie far apart, and small ones would cost a walk of the page tables for each.
    ///
    /// # Errors
    /// [`KvError`] when the shape overflows or the memory is refused.
    pub fn new(layout: KvLayout) -> Result<KvArena, KvError> {
        let bytes = layout.bytes().ok_or(KvError::TooLarge(layout))?;
        let mut memory = MmapMut::map_anon(bytes.max(64)).map_err(|_| KvError::OutOfMemory(bytes))?;
        // A system that has no large pages to give goes on with small ones.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        let start = memory.as_mut_ptr();
        Ok(KvArena { layout, start, memory })
    }

    /// The shape.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Fills a page with NaN, so that a read of memory that nobody wrote shows. For tests and
    /// debug builds.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn poison_page(&mut self, page: u32) {
        // All bits set is a NaN in every storage type.
        self.fill_page(page, 0xff);
    }

    /// Writes `byte` all over a page: memory that was never written is not there, and reading it costs nothing. For
    /// measurements.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn fill_page(&mut self, page: u32, byte: u8) {
        assert!((page as usize) < self.layout.pages, "page {page} of {}", self.layout.pages);
        let bytes = self.memory.len() / self.layout.pages;
        // SAFETY: the page lies in the arena, and any bits are a value of every storage type.
        unsafe { self.start.add(page as usize * bytes).write_bytes(byte, bytes) }
    }

    /// The stored vector of one token: layer, kv head, K (or V), absolute page and slot. For tests
    /// and for tools; kernels read the memory directly.
    pub fn read(&self, page: u32, layer: usize, value: bool, head: usize, slot: usize) -> Vec<f32> {
        let half = if value { Half::Value } else { Half::Key };
        assert!(slot < PAGE_TOKENS);
        let (dtype, d) = (self.layout.dtype, self.layout.head_dim);
        let bytes = PAGE_TOKENS * d * dtype.size();
        // SAFETY: head_rows checks page, layer and head; the vectors of a head are one piece.
        let data = unsafe { std::slice::from_raw_parts(self.head_rows(page, layer, half, head), bytes) };
        let at = |i: usize| match half {
            Half::Key => i * PAGE_TOKENS + slot,
            Half::Value => slot * d + i,
        };
        (0..d).map(|i| dtype.read(data, at(i))).collect()
    }

    /// Start of the 16 vectors of one head in one page: keys `[element][slot]`, values `[slot][element]`.
    ///
    /// # Panics
    /// When page, layer or head do not exist.
    #[inline(always)]
    pub(crate) fn head_rows(&self, page: u32, layer: usize, half: Half, head: usize) -> *const u8 {
        let l = &self.layout;
        let page = page as usize;
        assert!(
            page < l.pages && layer < l.layers && head < l.kv_heads,
            "page {page}, layer {layer}, head {head}"
        );
        let vectors = ((page * l.layers + layer) * 2 + half as usize) * l.kv_heads + head;
        // SAFETY: the indices are below the extents that the arena was sized with.
        unsafe { self.start.add(vectors * PAGE_TOKENS * l.head_dim * l.dtype.size()) }
    }

    /// Stores one vector.
    ///
    /// # Safety
    /// The arena must be borrowed mutably by the operation, and no other thread may touch the same
    /// (page, layer, half, head, slot) meanwhile.
    pub(crate) unsafe fn store(
        &self,
        page: u32,
        layer: usize,
        half: Half,
        head: usize,
        slot: usize,
        values: &[f32],
    ) {
        assert!(slot < PAGE_TOKENS && values.len() == self.layout.head_dim);
        let (dtype, size) = (self.layout.dtype, self.layout.dtype.size());
        let rows = self.head_rows(page, layer, half, head).cast_mut();
        if half == Half::Value {
            let bytes = values.len() * size;
            // SAFETY: the slot lies in the head's 16 vectors; exclusive by this function's contract.
            let data = unsafe { std::slice::from_raw_parts_mut(rows.add(slot * bytes), bytes) };
            return dtype.write_all(data, values);
        }
        let mut stored = [0; PIECE * 4];
        for (i, piece) in values.chunks(PIECE).enumerate() {
            let stored = &mut stored[..piece.len() * size];
            dtype.write_all(stored, piece);
            for (j, element) in stored.chunks_exact(size).enumerate() {
                let at = ((i * PIECE + j) * PAGE_TOKENS + slot) * size;
                // SAFETY: the slot's element lies in the head's 16 vectors; exclusive by this function's contract.
                unsafe { std::ptr::copy_nonoverlapping(element.as_ptr(), rows.add(at), size) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_and_refused_shapes_are_errors() {
        let layout =
            KvLayout { layers: 2, kv_heads: 1, head_dim: 4, dtype: DType::F32, pages: usize::MAX / 8 };
        assert_eq!(KvArena::new(layout).err(), Some(KvError::TooLarge(layout)));
        let layout = KvLayout { pages: 1 << 52, ..layout };
        assert!(KvArena::new(layout).is_err());
    }

    #[test]
    fn pages_start_zeroed_and_poison_touches_one_page() {
        let layout = KvLayout { layers: 2, kv_heads: 3, head_dim: 6, dtype: DType::F16, pages: 3 };
        assert_eq!(layout.bytes_per_page(), Some(2 * 2 * 3 * 16 * 6 * 2));
        let mut kv = KvArena::new(layout).unwrap();
        kv.poison_page(1);
        for page in 0..3 {
            for (layer, value, head, slot) in [(0, false, 0, 0), (1, true, 2, 15)] {
                let read = kv.read(page, layer, value, head, slot);
                assert!(read.iter().all(|x| x.is_nan() == (page == 1) && (page == 1 || *x == 0.0)));
            }
        }
    }
}
