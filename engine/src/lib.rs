//! Models on devices, and the rank loop that drives them.
