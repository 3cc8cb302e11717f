//! Reads the zip containers that torch writes: every entry stored as it is, sizes in the central directory (with a data
//! descriptor behind the entry), zip64 for large files. Anything else is refused. Nothing is allocated before it was
//! compared with the length of the file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Directories larger than this are no router's: 2^18 entries with short names.
const MOST_DIRECTORY: u64 = 16 << 20;
/// An end record, its comment of at most 65535 bytes, and a zip64 locator before it.
const TAIL: u64 = 22 + 65_535 + 20;
const END: [u8; 4] = *b"PK\x05\x06";
const LOCATOR: [u8; 4] = *b"PK\x06\x07";
const END64: [u8; 4] = *b"PK\x06\x06";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";
/// In a 32-bit field: the number is in the zip64 extra field.
const BIG: u64 = 0xffff_ffff;

/// An opened container.
pub(super) struct Zip {
    file: File,
    len: u64,
    entries: HashMap<String, Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    header: u64,
    size: u64,
}

impl Zip {
    /// Opens `path` and reads its directory.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|e| format!("cannot be opened: {e}"))?;
        let meta = file.metadata().map_err(|e| format!("cannot be examined: {e}"))?;
        if !meta.is_file() {
            return Err("is not a regular file".into());
        }
        let mut zip = Self { file, len: meta.len(), entries: HashMap::new() };
        let first = zip.read(0, zip.len.min(4))?;
        if first != LOCAL {
            return Err(not_a_zip(&first));
        }
        let (at, size, count) = zip.directory()?;
        if size > MOST_DIRECTORY {
            return Err(format!("has a directory of {size} bytes, at most {MOST_DIRECTORY} are read"));
        }
        let directory = zip.read(at, size)?;
        zip.entries = parse_directory(&directory, count)?;
        Ok(zip)
    }

    /// The names of all entries.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The size of an entry.
    pub(super) fn size(&self, name: &str) -> Option<u64> {
        self.entries.get(name).map(|e| e.size)
    }

    /// All bytes of an entry.
    pub(super) fn entry(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let entry = *self.entries.get(name).ok_or_else(|| format!("holds no entry {name:?}"))?;
        let local = self.read(entry.header, 30)?;
        if local[..4] != LOCAL {
            return Err(format!("has no entry where its directory says that {name:?} is"));
        }
        let skip = 30 + u64::from(u16_at(&local, 26)?) + u64::from(u16_at(&local, 28)?);
        let at = entry.header.checked_add(skip).ok_or("has an entry beyond its end")?;
        self.read(at, entry.size)
    }

    fn read(&mut self, at: u64, len: u64) -> Result<Vec<u8>, String> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        let size = usize::try_from(len).ok().filter(|_| inside);
        let size = size.ok_or_else(|| {
            format!("is truncated or lies: {len} bytes at {at} are asked for, it has {} in all", self.len)
        })?;
        let failed = |e: std::io::Error| format!("cannot be read: {e}");
        self.file.seek(SeekFrom::Start(at)).map_err(failed)?;
        let mut out = vec![0; size];
        self.file.read_exact(&mut out).map_err(failed)?;
        Ok(out)
    }

    /// Where the directory is, its size, and how many entries it has.
    fn directory(&mut self) -> Result<(u64, u64, u64), String> {
        let start = self.len.saturating_sub(TAIL);
        let tail = self.read(start, self.len - start)?;
        let end = (0..tail.len().saturating_sub(21)).rev().find(|i| tail[*i..*i + 4] == END);
        let end = end.ok_or("is truncated: the end of its zip container is missing")?;
        let (count, size, at) = (
            u64::from(u16_at(&tail, end + 10)?),
            u64::from(u32_at(&tail, end + 12)?),
            u64::from(u32_at(&tail, end + 16)?),
        );
        if count != 0xffff && size != BIG && at != BIG {
            return Ok((at, size, count));
        }
        let locator = end.checked_sub(20).filter(|i| tail[*i..*i + 4] == LOCATOR);
        let locator = locator.ok_or("says that it is a zip64 container and has no zip64 record")?;
        let record = self.read(u64_at(&tail, locator + 8)?, 56)?;
        if record[..4] != END64 {
            return Err("has no zip64 record where it says".into());
        }
        Ok((u64_at(&record, 48)?, u64_at(&record, 40)?, u64_at(&record, 32)?))
    }
}

fn not_a_zip(first: &[u8]) -> String {
    match first {
        [] => "is empty".into(),
        [0x80, ..] => {
            "is a torch file of the old kind (before torch 1.6); load it with torch.load and write it with torch.save".into()
        }
        _ => "is not a torch file: those are zip containers".into(),
    }
}

fn parse_directory(data: &[u8], count: u64) -> Result<HashMap<String, Entry>, String> {
    let mut entries = HashMap::new();
    let mut at = 0;
    while at < data.len() {
        if data.get(at..at + 4) != Some(&CENTRAL) {
            return Err("has a damaged directory".into());
        }
        let [name_len, extra_len, comment_len] =
            [u16_at(data, at + 28)?, u16_at(data, at + 30)?, u16_at(data, at + 32)?].map(usize::from);
        let names = at + 46;
        let name = data.get(names..names + name_len).ok_or("has a damaged directory")?;
        let name = std::str::from_utf8(name).map_err(|_| "has an entry whose name is not UTF-8")?;
        let extra =
            data.get(names + name_len..names + name_len + extra_len).ok_or("has a damaged directory")?;
        if u16_at(data, at + 8)? & 1 != 0 {
            return Err(format!("is encrypted (entry {name:?})"));
        }
        let method = u16_at(data, at + 10)?;
        let [packed, size, header] =
            sizes(extra, [u32_at(data, at + 20)?, u32_at(data, at + 24)?, u32_at(data, at + 42)?])?;
        if method != 0 || packed != size {
            return Err(format!("has a compressed entry {name:?}; torch stores them as they are"));
        }
        if entries.insert(name.to_owned(), Entry { header, size }).is_some() {
            return Err(format!("has two entries {name:?}"));
        }
        at = names + name_len + extra_len + comment_len;
    }
    if entries.len() as u64 != count {
        return Err(format!("has {} entries, its end says {count}", entries.len()));
    }
    Ok(entries)
}

/// `[packed, unpacked, header]`, those that do not fit 32 bits from the zip64 extra field (there: unpacked, packed,
/// header, only those that are needed).
fn sizes(extra: &[u8], short: [u32; 3]) -> Result<[u64; 3], String> {
    let mut out = short.map(u64::from);
    if !out.contains(&BIG) {
        return Ok(out);
    }
    let mut at = 0;
    while at + 4 <= extra.len() {
        let (id, len) = (u16_at(extra, at)?, usize::from(u16_at(extra, at + 2)?));
        if id == 1 {
            let mut field = at + 4;
            for i in [1, 0, 2] {
                if out[i] == BIG {
                    out[i] = u64_at(extra, field)?;
                    field += 8;
                }
            }
            return Ok(out);
        }
        at += 4 + len;
    }
    Err("has an entry of zip64 size without its zip64 field".into())
}

fn bytes_at<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], String> {
    let end = at.checked_add(N);
    let found = end.and_then(|end| data.get(at..end)).and_then(|b| b.try_into().ok());
    found.ok_or_else(|| "has a damaged directory".to_owned())
}

fn u16_at(data: &[u8], at: usize) -> Result<u16, String> {
    bytes_at(data, at).map(u16::from_le_bytes)
}

fn u32_at(data: &[u8], at: usize) -> Result<u32, String> {
    bytes_at(data, at).map(u32::from_le_bytes)
}

fn u64_at(data: &[u8], at: usize) -> Result<u64, String> {
    bytes_at(data, at).map(u64::from_le_bytes)
}
