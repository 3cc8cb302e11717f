//! Small tokenizers for tests.
