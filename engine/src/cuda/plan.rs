//! The memory plan of GPUs (DESIGN rule 2): each device has its own budget, and the largest page count that every
//! device holds is the capacity of all models.
//!
//! Everything else is there when the plan is made: weights are packed, buffers allocated, and the memory that captured
//! graphs take was measured. So the caches get what is left, and nothing grows afterwards. Devices may differ in size:
//! the one with the least room decides.

use std::fmt;

use tokenrouter_kernels::cpu::PAGE_TOKENS;

use crate::budget::{USEFUL_TOKENS, show_bytes};

/// What one model's shard takes on one device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardDemand {
    /// The model's name, with the shard's number when there are several.
    pub(super) name: String,
    /// Packed weights, those of router heads included.
    pub(super) weight_bytes: u64,
    /// Activation buffers, step blocks, position tables.
    pub(super) activation_bytes: u64,
    /// Captured graphs, as measured.
    pub(super) graph_bytes: u64,
    /// One page of its cache: 16 tokens, keys and values of its layers and heads.
    pub(super) page_bytes: u64,
}

/// One device and all that lives on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceDemand {
    /// Its number.
    pub(super) ordinal: usize,
    /// Its name.
    pub(super) name: String,
    /// Bytes that the engine may use on it, everything included.
    pub(super) budget_bytes: u64,
    /// The shards on it.
    pub(super) shards: Vec<ShardDemand>,
}

impl DeviceDemand {
    fn fixed(&self) -> u64 {
        self.shards.iter().map(|s| s.weight_bytes + s.activation_bytes + s.graph_bytes).sum()
    }

    fn page_bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.page_bytes).sum()
    }

    /// Pages that the rest of the budget holds, less one per cache: padding has a page of its own.
    fn pages(&self) -> u64 {
        (self.budget_bytes.saturating_sub(self.fixed()) / self.page_bytes().max(1)).saturating_sub(1)
    }
}

/// The plan: one page count for all models on all devices. `Display` prints the table shown at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DevicePlan {
    /// Pages in every model's cache, the page for padding not counted.
    pub(crate) pages: usize,
    /// Tokens that fit: 16 per page.
    pub(crate) tokens: usize,
    devices: Vec<DeviceDemand>,
}

/// A device does not carry what is placed on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTooSmall {
    device: DeviceDemand,
    tokens: u64,
    needed_tokens: usize,
}

impl fmt::Display for DeviceTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.device;
        let sum = |part: fn(&ShardDemand) -> u64| show_bytes(d.shards.iter().map(part).sum());
        let needed = d.fixed() + d.page_bytes() * (self.needed_tokens.div_ceil(PAGE_TOKENS) as u64 + 1);
        let names: Vec<&str> = d.shards.iter().map(|s| s.name.as_str()).collect();
        write!(
            f,
            "CUDA device {} ({}) has a budget of {}, which is too small for {}: weights take {}, buffers {}, graphs {}, \
             and the rest holds {} tokens of KV cache where {} are needed; it takes at least {} ({needed} bytes): give \
             more memory, place a model on more devices, or choose smaller models or step limits",
            d.ordinal,
            d.name,
            show_bytes(d.budget_bytes),
            names.join(" and "),
            sum(|s| s.weight_bytes),
            sum(|s| s.activation_bytes),
            sum(|s| s.graph_bytes),
            self.tokens,
            self.needed_tokens,
            show_bytes(needed),
        )
    }
}

impl std::error::Error for DeviceTooSmall {}

/// The largest page count that every device holds. `shortest` is the longest request in tokens.
///
/// # Errors
/// [`DeviceTooSmall`] for the first device on which not even one request of a useful length fits.
pub(super) fn plan(devices: Vec<DeviceDemand>, shortest: usize) -> Result<DevicePlan, DeviceTooSmall> {
    let needed_tokens = USEFUL_TOKENS.min(shortest);
    let needed = needed_tokens.div_ceil(PAGE_TOKENS) as u64;
    if let Some(device) = devices.iter().find(|d| d.pages() < needed) {
        let tokens = device.pages() * PAGE_TOKENS as u64;
        return Err(DeviceTooSmall { device: device.clone(), tokens, needed_tokens });
    }
    // Page ids are u32; one more is the page for padding, and u32::MAX is "no page".
    let most = u64::from(u32::MAX) - 2;
    let pages = devices.iter().map(DeviceDemand::pages).min().unwrap_or(0).min(most) as usize;
    Ok(DevicePlan { pages, tokens: pages * PAGE_TOKENS, devices })
}

impl fmt::Display for DevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.devices.iter().flat_map(|d| &d.shards).map(|s| s.name.chars().count());
        let width = names.max().unwrap_or(0).max(5);
        let line = |f: &mut fmt::Formatter<'_>, name: &str, cells: [&str; 6]| {
            let [a, b, c, d, e, g] = cells;
            writeln!(f, "{name:<width$}  {a:>6}  {b:>12}  {c:>12}  {d:>12}  {e:>12}  {g:>12}")
        };
        line(f, "model", ["device", "weights", "activations", "graphs", "KV cache", "KV/token"])?;
        for device in &self.devices {
            for s in &device.shards {
                let bytes = [
                    s.weight_bytes,
                    s.activation_bytes,
                    s.graph_bytes,
                    s.page_bytes * (self.pages as u64 + 1),
                    s.page_bytes / PAGE_TOKENS as u64,
                ];
                let [a, b, c, d, e] = bytes.map(show_bytes);
                line(f, &s.name, [&device.ordinal.to_string(), &a, &b, &c, &d, &e])?;
            }
        }
        for device in &self.devices {
            let used = device.fixed() + device.page_bytes() * (self.pages as u64 + 1);
            let (used, budget) = (show_bytes(used), show_bytes(device.budget_bytes));
            writeln!(f, "device {} ({}): {used} of {budget} given out", device.ordinal, device.name)?;
        }
        let Self { tokens, pages, .. } = self;
        write!(f, "{tokens} tokens fit on every model ({pages} pages of {PAGE_TOKENS})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ordinal: usize, budget_bytes: u64, pages: &[u64]) -> DeviceDemand {
        let shard = |(i, page_bytes): (usize, &u64)| ShardDemand {
            name: format!("model {i}"),
            weight_bytes: 1000,
            activation_bytes: 200,
            graph_bytes: 30,
            page_bytes: *page_bytes,
        };
        let shards = pages.iter().enumerate().map(shard).collect();
        DeviceDemand { ordinal, name: "card".into(), budget_bytes, shards }
    }

    #[test]
    fn the_smallest_device_decides() {
        let devices = vec![device(0, 1230 + 64 * 101, &[64]), device(1, 2460 + 96 * 31, &[64, 32])];
        let plan = plan(devices, 4096).unwrap();
        assert_eq!((plan.pages, plan.tokens), (30, 480));
        let table = plan.to_string();
        assert!(table.contains("480 tokens fit on every model (30 pages of 16)"), "{table}");
        assert_eq!(table.lines().count(), 1 + 3 + 2 + 1, "{table}");
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_with_every_term() {
        let devices = vec![device(0, 1 << 20, &[64]), device(3, 2460 + 96 * 16, &[64, 32])];
        let text = plan(devices, 4096).unwrap_err().to_string();
        for part in [
            "CUDA device 3 (card)",
            "model 0 and model 1",
            "weights take 1.95 KiB",
            "buffers 400 B",
            "graphs 60 B",
            "holds 240 tokens",
            "where 256 are needed",
            "(4092 bytes)",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_short_context_needs_no_more_than_itself() {
        assert_eq!(plan(vec![device(0, 1230 + 64 * 3, &[64])], 20).unwrap().pages, 2);
        assert!(plan(vec![device(0, 1230 + 64 * 2, &[64])], 20).is_err());
    }

    #[test]
    fn a_budget_below_the_fixed_part_is_refused() {
        assert!(plan(vec![device(0, 100, &[64])], 4096).is_err());
    }
}
