//! `GET /metrics`: what the network thread has counted and what the engine's atomics say, as Prometheus text.
//!
//! Names with `vllm:` are those that existing dashboards, autoscalers and bench tools look for, with the meaning they
//! expect; a request here is one choice, as there. Names with `tokenrouter:` are ours. Gauges are read when the page
//! is asked for. `docs/metrics.md` explains every family.

mod histogram;
mod http;
mod models;
mod page;
mod plan;
mod process;
mod status;
mod text;
mod throughput;
mod traffic;

#[cfg(test)]
pub(crate) use http::HANDLERS;
pub(crate) use http::Tally;
pub(crate) use page::{Facts, page};
pub(crate) use status::status_json;
pub(crate) use text::CONTENT_TYPE;
pub(crate) use throughput::Throughput;
pub(crate) use traffic::Traffic;
