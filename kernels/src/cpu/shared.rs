//! An output slice that several threads fill at the same time, each its own elements.

use std::marker::PhantomData;

/// A mutable slice handed to the parts of one operation.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through unsafe methods whose callers keep the touched elements disjoint.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// Where elements `at .. at + len` begin, all of which there are.
    #[inline(always)]
    pub(crate) fn range(&self, at: usize, len: usize) -> *mut T {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds by the assertion.
        unsafe { self.start.add(at) }
    }

    /// Elements `at .. at + len`.
    ///
    /// # Safety
    /// No other thread may touch them while the result lives.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjoint parts of one slice; the caller upholds it")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        let start = self.range(at, len);
        // SAFETY: in bounds by the assertion there; disjoint by the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
