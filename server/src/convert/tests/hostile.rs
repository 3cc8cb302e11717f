//! Pickles that want to run something, lie about sizes, nest, or refer to themselves.

use super::super::pickle::{Pickle, Value};
use super::super::torch::TorchFile;
use super::super::{convert, zip::Zip};
use super::{TempDir, args, golden, torch_file};

fn refusal(pickle: &[u8]) -> String {
    Pickle::read(pickle).err().expect("a refusal")
}

/// A pickle of protocol 2 with this body.
fn two(body: &[u8]) -> Vec<u8> {
    [b"\x80\x02", body, b"."].concat()
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn calls_of_anything_else_are_named_and_not_run() {
    let dir = TempDir::new();
    let mark = dir.0.join("ran");
    let command = text(&format!("touch {}", mark.display()));
    let bodies: Vec<(Vec<u8>, &str)> = vec![
        ([b"cos\nsystem\n", &command[..], b"\x85R"].concat(), "os.system"),
        ([b"cposix\nsystem\n", &command[..], b"\x85R"].concat(), "posix.system"),
        ([&text("builtins")[..], &text("eval"), b"\x93", &command, b"\x85R"].concat(), "builtins.eval"),
        (b"csubprocess\nPopen\n)R".to_vec(), "subprocess.Popen"),
        (b"ctorch\nload\n)R".to_vec(), "torch.load"),
        (b"ctorch._utils\n_rebuild_tensor\n)R".to_vec(), "torch._utils._rebuild_tensor"),
        (b"ccollections\nOrderedDict.fromkeys\n)R".to_vec(), "OrderedDict.fromkeys"),
        (b"cnumpy.core.multiarray\nscalar\n)R".to_vec(), "numpy.core.multiarray.scalar"),
        (b"c\x1b[2J\nx\n".to_vec(), "\\u{1b}[2J.x"),
    ];
    for (body, name) in bodies {
        let pickle = two(&body);
        let error = refusal(&pickle);
        assert!(error.contains(name) && error.contains("nothing of the file was run"), "{name}: {error}");
        let file = dir.file("hostile.pt", &torch_file(&pickle, &[]));
        let error = convert(&args(file, &dir)).unwrap_err();
        assert!(error.contains(name) && error.contains("hostile.pt"), "{error}");
    }
    assert!(!mark.exists());
}

#[test]
fn known_names_take_only_their_own_arguments() {
    for (body, part) in [
        (&b"ccollections\nOrderedDict\nK\x01\x85R"[..], "collections.OrderedDict"),
        (b"ctorch\nFloatStorage\n)R", "a torch storage"),
        (b"ctorch\nfloat32\n)R", "a torch dtype"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "_rebuild_tensor_v2"),
        (b"ctorch._utils\n_rebuild_parameter\nN\x85R", "_rebuild_parameter"),
        (b"ccollections\nOrderedDict\nNR", "without a tuple"),
        (b"N)R", "no function"),
        (b"]}b", "no dictionary"),
        (b"}]b", "no dictionary"),
        (b"NQ", "no torch storage"),
        (b"(X\x06\0\0\0moduleNNNNtQ", "no torch storage"),
    ] {
        let error = refusal(&two(body));
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn lengths_that_lie_allocate_nothing() {
    for body in [
        &b"X\xff\xff\xff\xff"[..],
        b"B\xff\xff\xff\x7f",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x8c\xff",
        b"\x8a\xff",
        b"\x95\x01",
    ] {
        assert!(refusal(&[b"\x80\x04", body].concat()).contains("truncated"), "{body:?}");
    }
    assert!(refusal(&two(b"\x8a\x09\0\0\0\0\0\0\0\0\x01")).contains("whole number of 9 bytes"));
    // A place in the memo far away is a place like any other.
    let far = two(b"Nr\xff\xff\xff\xff0j\xff\xff\xff\xff");
    assert_eq!(Pickle::read(&far).unwrap().root(), Value::None);
}

#[test]
fn the_stack_is_checked() {
    for (body, part) in [
        (&b"0"[..], "none is"),
        (b"t", "not opened"),
        (b"NNa", "appends"),
        (b"NNs", "none is"),
        (b"NNNs", "no dictionary"),
        (b"}(Nu", "key without a value"),
        (b"(0", "none is"),
        (b"N(\x85", "none is"),
        (b"h\x07", "not remembered"),
        (b"q\x00", "none is"),
        (b"NN\x93", "no text"),
        (b"i", "0x69"),
        (b"\x81", "0x81"),
        (b"\x92", "0x92"),
        (b"P1\n", "0x50"),
        (b"\x82\x01", "0x82"),
        (b"cos", "without an end"),
        (b"", "none is"),
    ] {
        let error = refusal(&two(body));
        assert!(error.contains(part), "{body:?}: {error}");
    }
    assert!(refusal(b"\x80\x01N.").contains("protocol 1"));
    assert!(refusal(b"\x80\x09N.").contains("protocol 9"));
    assert!(refusal(b"").contains("truncated"));
}

#[test]
fn cycles_and_deep_nesting_end() {
    let dir = TempDir::new();
    let cycles = [
        &b"]q\0h\0a"[..],
        b"}q\0X\x0a\0\0\0model_typeh\0s",
        b"}q\0X\x0a\0\0\0model_typeh\0sX\x0a\0\0\0state_dicth\0s",
    ];
    for body in cycles {
        let file = dir.file("cycle.pt", &torch_file(&two(body), &[]));
        assert!(convert(&args(file, &dir)).is_err());
    }
    // A tuple in a tuple, a million times: dropping it must not recurse.
    let deep = two(&[&b")"[..], &vec![0x85; 1_000_000]].concat());
    assert!(Pickle::read(&deep).is_ok());
    let deeper = two(&[&b")"[..], &vec![0x85; 1 << 20]].concat());
    assert!(refusal(&deeper).contains("objects"));
    assert!(refusal(&vec![b'N'; 1 << 17]).contains("stack"));
    assert!(refusal(&vec![b'('; 1 << 17]).contains("marks"));
    let many = [vec![b']'], [&b"("[..], &[b'N'; 60_000], b"e"].concat().repeat(40)].concat();
    assert!(refusal(&many).contains("entries"));
    let memo = [vec![b'N'], vec![0x94; 1 << 22]].concat();
    assert!(refusal(&memo).contains("remembered"));
}

#[test]
fn cut_and_bent_pickles_never_panic() {
    for name in ["r2r-widths.pt", "r2r-widths_all.pt", "mlp_iter_0123.pth", "gperp_init.bin"] {
        let (file, whole) = TorchFile::open(&golden().join("torch").join(name)).unwrap();
        assert!(file.parse(&whole).is_ok(), "{name}");
        // Every byte of the short ones; the long ones repeat themselves.
        let step = whole.len() / 1500 * 7 + 1;
        for len in (0..whole.len()).step_by(step) {
            assert!(Pickle::read(&whole[..len]).is_err(), "{name}: {len} of {} bytes", whole.len());
        }
        for i in (0..whole.len()).step_by(step) {
            for flip in [0x01, 0x80, 0xff] {
                let mut bent = whole.clone();
                bent[i] ^= flip;
                let _ = Pickle::read(&bent);
            }
        }
    }
}

/// A tensor over storage `0` of four floats.
fn tensor(offset: &[u8], size: &[u8], stride: &[u8], key: &str, len: &[u8]) -> Vec<u8> {
    let storage =
        [&b"("[..], &text("storage"), b"ctorch\nFloatStorage\n", &text(key), &text("cpu"), len, b"tQ"]
            .concat();
    let body = [&b"ctorch._utils\n_rebuild_tensor_v2\n("[..], &storage, offset, size, stride, b"\x89NtR"];
    two(&body.concat())
}

#[test]
fn tensors_stay_inside_their_storage() {
    let dir = TempDir::new();
    let read = |pickle: &[u8]| {
        let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let path = dir.file("tensor.pt", &torch_file(pickle, &[("0", &data)]));
        let (mut file, data) = TorchFile::open(&path)?;
        let pickle = file.parse(&data)?;
        file.tensor(&pickle, "w", pickle.root()).map(|t| (t.shape, t.values))
    };
    let (zero, two_by_two, rows) = (&b"K\0"[..], &b"K\x02K\x02\x86"[..], &b"K\x02K\x01\x86"[..]);
    let four = &b"K\x04"[..];
    assert_eq!(read(&tensor(zero, two_by_two, rows, "0", four)), Ok((vec![2, 2], vec![1.0, 2.0, 3.0, 4.0])));
    assert_eq!(read(&tensor(b"K\x03", b"K\x01\x85", b"K\x01\x85", "0", four)), Ok((vec![1], vec![4.0])));
    assert_eq!(read(&tensor(zero, b")", b")", "0", four)), Ok((vec![], vec![1.0])));
    let huge = b"\x8a\x08\0\0\0\0\0\0\0\x40";
    for (pickle, part) in [
        (tensor(b"K\x01", two_by_two, rows, "0", four), "beyond"),
        (tensor(zero, b"K\x05\x85", b"K\x01\x85", "0", b"K\x05"), "beyond"),
        (tensor(huge, two_by_two, rows, "0", huge), "beyond"),
        (tensor(zero, &[huge, huge, &b"\x86"[..]].concat(), rows, "0", four), "overflow"),
        (tensor(zero, &[huge, &b"\x85"[..]].concat(), b"K\0\x85", "0", four), "strides"),
        (tensor(zero, two_by_two, b"K\x01K\x02\x86", "0", four), "strides"),
        (tensor(zero, two_by_two, b"K\x01\x85", "0", four), "more sizes"),
        (tensor(zero, b"J\xff\xff\xff\xff\x85", b"K\x01\x85", "0", four), "no numbers"),
        (tensor(b"J\xff\xff\xff\xff", two_by_two, rows, "0", four), "before"),
        (tensor(zero, two_by_two, rows, "../../x", four), "missing"),
        (tensor(zero, &[&b"("[..], &b"K\x01".repeat(9), b"t"].concat(), rows, "0", four), "no numbers"),
        (two(b"N"), "no tensor"),
    ] {
        let error = read(&pickle).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn files_that_are_no_torch_files_are_refused() {
    let dir = TempDir::new();
    let open = |entries: &[(&str, &[u8])]| {
        TorchFile::open(&dir.file("x.pt", &super::container(entries))).map(|_| ()).unwrap_err()
    };
    assert!(open(&[("other", b"")]).contains("data.pkl"));
    assert!(open(&[("a/data.pkl", b""), ("b/data.pkl", b"")]).contains("no single"));
    assert!(open(&[("a/data.pkl", b"N."), ("a/byteorder", b"big")]).contains("big-endian"));
    let large = vec![b'N'; (16 << 20) + 1];
    assert!(open(&[("a/data.pkl", &large)]).contains("at most"));
    assert!(Zip::open(&dir.0).is_err(), "a folder");
}
