//! Scheduling and routing decisions as a pure state machine.
#![forbid(unsafe_code)]
