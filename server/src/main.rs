//! The `tokenrouter` binary.

fn main() {}
