//! Addresses in device memory.

use std::marker::PhantomData;

/// A device address of elements `T`, as kernels take it. Nothing on the host can follow it.
#[repr(transparent)]
pub struct Ptr<T> {
    address: u64,
    element: PhantomData<*const T>,
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

// SAFETY: an address is a number; what may be done with it is said where it is used.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> std::fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

impl<T> Ptr<T> {
    /// No memory: where a kernel allows an operand to be absent.
    pub const NULL: Self = Self::new(0);

    /// The address itself.
    pub const fn new(address: u64) -> Self {
        Self { address, element: PhantomData }
    }

    /// The number.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Whether it is [`Ptr::NULL`].
    pub const fn is_null(self) -> bool {
        self.address == 0
    }

    /// `count` elements further on.
    pub const fn add(self, count: usize) -> Self {
        Self::new(self.address + (count * size_of::<T>()) as u64)
    }

    /// The same address of other elements.
    pub const fn cast<U>(self) -> Ptr<U> {
        Ptr::new(self.address)
    }
}
