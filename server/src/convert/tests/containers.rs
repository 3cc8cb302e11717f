//! Zip containers that torch could, and could not, have written.

use super::super::zip::Zip;
use super::{TempDir, container, golden};

fn open(data: &[u8]) -> Result<Zip, String> {
    let dir = TempDir::new();
    Zip::open(&dir.file("x.zip", data))
}

fn refusal(data: &[u8]) -> String {
    open(data).err().expect("a refusal")
}

/// Where the directory starts, from the end record without a comment.
fn directory(data: &[u8]) -> usize {
    u32::from_le_bytes(data[data.len() - 6..data.len() - 2].try_into().unwrap()) as usize
}

#[test]
fn entries_are_read() {
    let data = container(&[("a/one", b"first"), ("a/two", b""), ("b", &[7; 1000])]);
    let mut zip = open(&data).unwrap();
    assert_eq!(zip.entry("a/one").unwrap(), b"first");
    assert_eq!(zip.entry("a/two").unwrap(), b"");
    assert_eq!((zip.entry("b").unwrap().len(), zip.size("b")), (1000, Some(1000)));
    assert!(zip.entry("c").unwrap_err().contains("\"c\""));
}

#[test]
fn sixty_four_bit_sizes_are_read() {
    let plain = container(&[("one", b"first")]);
    let at = directory(&plain);
    let mut data = plain[..at].to_vec();
    // The directory's sizes say "see the extra field".
    let mut entry = plain[at..at + 46 + 3].to_vec();
    entry[20..28].fill(0xff);
    entry[42..46].fill(0xff);
    let extra = [&[1, 0, 24, 0][..], &5u64.to_le_bytes(), &5u64.to_le_bytes(), &0u64.to_le_bytes()].concat();
    entry[30..32].copy_from_slice(&(extra.len() as u16).to_le_bytes());
    data.extend_from_slice(&entry);
    data.extend_from_slice(&extra);
    let size = (entry.len() + extra.len()) as u64;
    let record = data.len() as u64;
    data.extend_from_slice(b"PK\x06\x06");
    data.extend_from_slice(&[0; 20]);
    for number in [1, 1, size, at as u64] {
        data.extend_from_slice(&u64::to_le_bytes(number));
    }
    data.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    data.extend_from_slice(&record.to_le_bytes());
    data.extend_from_slice(&[1, 0, 0, 0]);
    data.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    data.extend_from_slice(&[0xff; 12]);
    data.extend_from_slice(&[0, 0]);
    assert_eq!(open(&data).unwrap().entry("one").unwrap(), b"first");
    // A record that lies about itself, in each of its bytes.
    for i in record as usize..data.len() {
        let mut bad = data.clone();
        bad[i] ^= 0xff;
        if let Ok(mut zip) = open(&bad) {
            let _ = zip.entry("one");
        }
    }
}

#[test]
fn what_torch_never_writes_is_refused() {
    let plain = container(&[("one", b"first")]);
    let at = directory(&plain);
    let with = |offset: usize, bytes: &[u8]| {
        let mut data = plain.clone();
        data[offset..offset + bytes.len()].copy_from_slice(bytes);
        data
    };
    assert!(refusal(&with(at + 10, &[8, 0])).contains("compressed"));
    assert!(refusal(&with(at + 20, &[4])).contains("compressed"));
    assert!(refusal(&with(at + 8, &[1])).contains("encrypted"));
    assert!(refusal(&with(at, b"X")).contains("directory"));
    assert!(refusal(&with(at + 46, &[0xff])).contains("UTF-8"));
    assert!(refusal(&with(plain.len() - 12, &[2])).contains("2"), "the count");
    assert!(refusal(&container(&[("one", b"a"), ("one", b"b")])).contains("two entries"));
    // An entry that reaches beyond the file, found when it is read.
    let long = with(at + 20, &[0, 0, 0, 0x7f, 0, 0, 0, 0x7f]);
    assert!(open(&long).unwrap().entry("one").unwrap_err().contains("truncated"));
    let away = with(at + 42, &[0xfe, 0xff, 0xff, 0x7f]);
    assert!(open(&away).unwrap().entry("one").unwrap_err().contains("truncated"));
    let huge = with(plain.len() - 10, &[0xfe, 0xff, 0xff, 0xff]);
    assert!(refusal(&huge).contains("directory"));
}

#[test]
fn cut_files_end_in_words() {
    let whole = std::fs::read(golden().join("torch/gperp_init.bin")).unwrap();
    let dir = TempDir::new();
    for len in 0..whole.len() {
        let path = dir.file("cut.bin", &whole[..len]);
        assert!(Zip::open(&path).is_err(), "{len} of {} bytes", whole.len());
    }
}
