//! A device for a test: the emulation once per seed, or the real one.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use cudarc::driver::CudaStream;
use half::bf16;
use tokenrouter_emulate::{STUB_IMAGE, Session, Settings, seeds, session, skip};
use tokenrouter_kernels::cuda::{Buffer, Device, Kernels, LinearArgs, PackArgs, Ptr, images, packed_len};

/// A NaN in every element.
pub(crate) const POISON: bf16 = bf16::from_bits(0xffff);

/// A device with loaded kernels. Dropped before the emulation's session.
pub(crate) struct Gpu {
    pub(crate) kernels: Kernels,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) device: Device,
}

impl Gpu {
    fn open(images: &[&[u8]], processors: Option<u32>) -> Self {
        let device = Device::open(0).unwrap();
        let stream = device.stream().unwrap();
        let mut kernels = Kernels::load(&device, images).unwrap();
        if let Some(processors) = processors {
            kernels.plan_for(processors);
        }
        Self { kernels, stream, device }
    }

    pub(crate) fn buffer<T: Pod>(&self, values: &[T]) -> Buffer<T> {
        Buffer::from_slice(&self.device, &self.stream, values).unwrap()
    }

    pub(crate) fn zeroed<T: Pod>(&self, len: usize) -> Buffer<T> {
        Buffer::zeroed(&self.device, &self.stream, len).unwrap()
    }

    pub(crate) fn read<T: Pod>(&self, buffer: &Buffer<T>) -> Vec<T> {
        buffer.read(&self.stream).unwrap()
    }

    /// Rows of `width` values, rounded to bf16, with rows of `stride` elements and zeros between.
    pub(crate) fn rows(&self, values: &[f32], width: usize, stride: usize) -> Buffer<bf16> {
        self.buffer(&padded(values, width, stride))
    }

    /// A packed weight of `n` rows.
    pub(crate) fn pack(&self, values: &[f32], n: usize, k: usize) -> Buffer<bf16> {
        let src = self.buffer(values);
        let dst = self.buffer(&vec![POISON; packed_len(n, k)]);
        self.pack_into(&dst, src.ptr().cast(), (n, k), (0, 1), 2);
        dst
    }

    pub(crate) fn pack_into(
        &self,
        dst: &Buffer<bf16>,
        src: Ptr<u8>,
        shape: (usize, usize),
        tiles: (u32, u32),
        kind: u32,
    ) {
        let (n, k) = (shape.0 as u32, shape.1 as u32);
        let args = PackArgs { src, dst: dst.ptr(), n, k, first_tile: tiles.0, tile_step: tiles.1, kind };
        // SAFETY: the buffers have these shapes, and every test waits for its results.
        unsafe { self.kernels.pack_weight(&self.stream, &args) }.unwrap();
        self.stream.synchronize().unwrap();
    }

    /// Runs a linear layer for up to `bound` rows.
    pub(crate) fn linear(&self, bound: u32, args: &LinearArgs) {
        // SAFETY: the tests give buffers of the shapes in `args`.
        unsafe { self.kernels.linear(&self.stream, bound, args) }.unwrap();
    }
}

/// Values rounded to bf16 in rows of `stride`.
pub(crate) fn padded(values: &[f32], width: usize, stride: usize) -> Vec<bf16> {
    let mut rows = vec![bf16::ZERO; values.len() / width * stride];
    for (row, from) in rows.chunks_exact_mut(stride).zip(values.chunks_exact(width)) {
        for (to, x) in row.iter_mut().zip(from) {
            *to = bf16::from_f32(*x);
        }
    }
    rows
}

/// Stride of activation rows.
pub(crate) fn stride_of(width: usize) -> usize {
    width.next_multiple_of(32)
}

/// Rounded to bf16 and back.
pub(crate) fn round(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// Whether this machine has a driver, a GPU and kernels for it; decided before the emulation is loaded.
fn real_gpu() -> bool {
    static REAL: OnceLock<bool> = OnceLock::new();
    *REAL.get_or_init(|| !images().is_empty() && Device::count().is_ok_and(|n| n > 0))
}

/// The emulation, for what is asked of it alone; `None`, with a line that says why, where there is none.
pub(crate) fn emulation() -> Option<Session> {
    if real_gpu() {
        skip("this process uses a real GPU");
        return None;
    }
    match session(Settings::default()) {
        Ok(emu) => Some(emu),
        Err(why) => {
            skip(&why);
            None
        }
    }
}

/// Runs `body` on the device: in the emulation under every seed and with large and small grids, with equal results.
pub(crate) fn everywhere<R: PartialEq + Debug>(body: impl Fn(&Gpu) -> R) {
    if real_gpu() {
        body(&Gpu::open(images(), None));
        return;
    }
    let Some(emu) = emulation() else { return };
    let mut first: Option<R> = None;
    for (i, seed) in seeds().into_iter().enumerate() {
        // With few multiprocessors in the plan, blocks go around several times.
        let grid = (i % 2 == 0).then_some(1 + i as u32);
        emu.reset(Settings { seed, ..Settings::default() });
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&Gpu::open(&[&STUB_IMAGE], grid))));
        let result = result.unwrap_or_else(|panic| {
            println!("seed {seed}: the emulation says: {}", emu.message());
            std::panic::resume_unwind(panic)
        });
        match &first {
            None => first = Some(result),
            Some(first) => assert!(*first == result, "seed {seed} changes the result"),
        }
    }
}

/// A small deterministic generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51afd7ed558ccd) ^ (x >> 29)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// Between -1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Values that bf16 holds exactly.
    pub(crate) fn bf16s(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| round(self.unit())).collect()
    }
}

/// Whether `found`, rounded to bf16, is near `expected`: one unit in the last place, and what f32 sums of magnitude
/// `scale` may lose.
#[track_caller]
pub(crate) fn close(found: f32, expected: f64, scale: f64, what: &str) {
    let error = (f64::from(found) - expected).abs();
    let limit = expected.abs() / 128.0 + scale * 1e-5 + 1e-30;
    assert!(error <= limit, "{what}: {found}, expected {expected}, limit {limit:e}");
}

/// The bits, for comparison: NaN equals itself and -0 is not 0.
pub(crate) fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|x| x.to_bits()).collect()
}
