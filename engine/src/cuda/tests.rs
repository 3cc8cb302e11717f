//! Tests on the pretend driver.
