//! Shared by the tests of this module.
