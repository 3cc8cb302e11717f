//! Faults of other servers that this one must not repeat, over HTTP, with models whose every logit the test has
//! written. `docs/regressions.md` says which test belongs to which entry of the bug log.

mod support;

#[path = "regressions/bodies.rs"]
mod bodies;
#[path = "regressions/context.rs"]
mod context;
#[path = "regressions/echo.rs"]
mod echo;
#[path = "regressions/ends.rs"]
mod ends;
#[path = "regressions/framing.rs"]
mod framing;
#[path = "regressions/neighbours.rs"]
mod neighbours;
#[path = "regressions/not_a_number.rs"]
mod not_a_number;
#[path = "regressions/table.rs"]
mod table;
#[path = "regressions/vocabulary.rs"]
mod vocabulary;
