//! `GET /metrics`: what the network thread has counted and what the engine's atomics say, as Prometheus text.
//!
//! Names with `vllm:` are those that existing dashboards, autoscalers and bench tools look for, with the meaning they
//! expect; a request here is one choice, as there. Names with `tokenrouter:` are ours. Gauges are read when the page
//! is asked for.

mod histogram;
mod page;
mod text;
mod traffic;

pub(crate) use page::page;
pub(crate) use text::CONTENT_TYPE;
pub(crate) use traffic::Traffic;
