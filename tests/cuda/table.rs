//! The host's kernel table against the kernels.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;

use cudarc::driver::{CudaContext, result, sys};
use tokenrouter_emulate::{STUB_IMAGE, Settings};
use tokenrouter_kernels::cuda::{CudaError, Device, KERNELS, Kernels};

use crate::harness::emulation;

#[test]
fn the_table_names_every_kernel_once() {
    let Some(emu) = emulation() else { return };
    let compiled: BTreeSet<String> = emu.kernel_names().into_iter().collect();
    let known: BTreeSet<String> = KERNELS.iter().map(|k| k.name.to_owned()).collect();
    assert_eq!(compiled, known);
    assert_eq!(KERNELS.len(), known.len(), "a name stands twice in the table");
}

#[test]
fn parameter_sizes_agree() {
    let Some(_emu) = emulation() else { return };
    let context = CudaContext::new(0).unwrap();
    context.bind_to_thread().unwrap();
    // SAFETY: the image is the emulation's stub.
    let module = unsafe { result::module::load_data(STUB_IMAGE.as_ptr().cast()) }.unwrap();
    for kernel in KERNELS {
        let name = std::ffi::CString::new(kernel.name).unwrap();
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(module, name) }.unwrap();
        let (mut offset, mut size) = (MaybeUninit::uninit(), MaybeUninit::<usize>::uninit());
        // SAFETY: both pointers are writable, and the size is read only after success.
        let size = unsafe {
            sys::cuFuncGetParamInfo(function, 0, offset.as_mut_ptr(), size.as_mut_ptr()).result().unwrap();
            size.assume_init()
        };
        assert_eq!(size, kernel.params, "bytes of the argument of {}", kernel.name);
        // SAFETY: as above; there is no second parameter.
        let second = unsafe { sys::cuFuncGetParamInfo(function, 1, offset.as_mut_ptr(), &mut 0) };
        assert!(second.result().is_err(), "{} takes one argument", kernel.name);
    }
    // SAFETY: loaded above, used no more.
    unsafe { result::module::unload(module) }.unwrap();
}

#[test]
fn what_is_missing_is_said_by_name() {
    let Some(emu) = emulation() else { return };
    let device = Device::open(0).unwrap();
    assert_eq!(Kernels::load(&device, &[]).err(), Some(CudaError::NoImage));
    assert!(matches!(Kernels::load(&device, &[&[7; 16]]), Err(CudaError::Driver { .. })), "no image at all");
    assert_eq!(Device::open(3).err(), Some(CudaError::NoDevice { ordinal: 3, count: 1 }));
    drop(device);
    emu.reset(Settings { devices: 0, ..Settings::default() });
    let none = Device::open(0).err().unwrap();
    assert_eq!(none, CudaError::NoDevice { ordinal: 0, count: 0 });
    assert!(none.to_string().contains("run with --device cpu"), "{none}");
}

/// The sizes that `gates.py` finds in the compiled kernels are compared with this file.
#[test]
fn the_budget_file_has_the_same_sizes() {
    let text = include_str!("../../kernels/cuda/budget.txt");
    let lines = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    let budget: BTreeSet<(String, usize)> = lines
        .filter(|words| words.len() > 1 && words[0] != "#")
        .map(|words| (words[0].to_owned(), words[1].parse().unwrap()))
        .collect();
    let table: BTreeSet<(String, usize)> = KERNELS.iter().map(|k| (k.name.to_owned(), k.params)).collect();
    assert_eq!(budget, table);
}
