//! The routing algorithms through the core: the list of tests in section 9.7 of the specification, as far as it
//! concerns the scheduler.

mod budget;
mod drive;
mod extremes;
mod mixture;
mod online;
mod query;
mod terms;
mod tokens;
