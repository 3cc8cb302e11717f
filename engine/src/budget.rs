//! The joint memory plan (DESIGN rule 2): one byte budget, one token capacity for all models.
//!
//! A page id names the same page in every model's cache, so a request that fits on one model fits on
//! all, and a handoff allocates nothing. The plan is a pure function, made once by the one owner of
//! the budget before anything is allocated; no model measures the machine by itself (bug-log L28).

use std::fmt;

use tokenrouter_kernels::cpu::PAGE_TOKENS;

/// The shortest capacity worth starting with, in tokens (or the context length, if that is shorter):
/// a chat turn with its answer. Below it nearly every request would be refused.
pub const USEFUL_TOKENS: usize = 256;

/// What one model asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDemand {
    /// The name shown in the table and in refusals.
    pub name: String,
    /// Bytes of weights, mapped from the files.
    pub weight_bytes: u64,
    /// Bytes of activation buffers and position tables, allocated once.
    pub activation_bytes: u64,
    /// Bytes of one page (16 tokens, all layers, keys and values) in this model's cache.
    pub kv_bytes_per_page: u64,
    /// The longest request this model takes, in tokens.
    pub context_len: usize,
}

/// What one model gets, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRow {
    /// The model's name.
    pub name: String,
    /// Mapped weights.
    pub weight_bytes: u64,
    /// Activation buffers and position tables.
    pub activation_bytes: u64,
    /// The model's cache of all pages.
    pub kv_bytes: u64,
    /// The cache bytes of one page.
    pub kv_bytes_per_page: u64,
}

/// The plan: how many pages every model holds, and who gets how many bytes. `Display` prints the
/// table shown at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointPlan {
    /// Pages in every model's cache.
    pub pages: usize,
    /// Tokens that fit: 16 per page.
    pub tokens: usize,
    /// One row per model, in order.
    pub rows: Vec<PlanRow>,
    /// The budget the plan was made for.
    pub budget_bytes: u64,
}

/// The budget does not carry the models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetError {
    /// There is no model to plan for.
    NoModels,
    /// A demand has no cache bytes per page, or sums overflow 64 bits: not a real model.
    Absurd {
        /// The model's name.
        name: String,
    },
    /// Weights and buffers leave fewer tokens than one useful request needs.
    TooSmall {
        /// The budget, in bytes.
        budget_bytes: u64,
        /// Bytes of all weights.
        weight_bytes: u64,
        /// Bytes of all activation buffers.
        activation_bytes: u64,
        /// Tokens that would fit into the rest.
        tokens: usize,
        /// Tokens that must fit.
        needed_tokens: usize,
        /// The smallest budget that would do.
        needed_bytes: u64,
    },
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoModels => write!(f, "no model to plan memory for"),
            Self::Absurd { name } => write!(f, "the sizes of model {name:?} do not fit 64 bits or are zero"),
            Self::TooSmall {
                budget_bytes,
                weight_bytes,
                activation_bytes,
                tokens,
                needed_tokens,
                needed_bytes,
            } => {
                write!(
                    f,
                    "the memory budget of {} is too small: weights take {}, activation buffers {}, and the rest \
                     holds {tokens} tokens of KV cache where {needed_tokens} are needed; give at least {} \
                     ({needed_bytes} bytes), or choose smaller models or step limits",
                    show_bytes(*budget_bytes),
                    show_bytes(*weight_bytes),
                    show_bytes(*activation_bytes),
                    show_bytes(*needed_bytes),
                )
            }
        }
    }
}

impl std::error::Error for BudgetError {}

/// The largest common page count that the budget carries.
///
/// The budget covers all that the process needs for its models: mapped weights (they must stay
/// resident to be fast), activation buffers, and the caches.
///
/// # Errors
/// [`BudgetError`] with every term when not even one request of a useful length fits.
pub fn plan(models: &[ModelDemand], budget_bytes: u64) -> Result<JointPlan, BudgetError> {
    let shortest = models.iter().map(|m| m.context_len).min().ok_or(BudgetError::NoModels)?;
    let (mut weights, mut activations, mut per_page) = (0_u64, 0_u64, 0_u64);
    for m in models {
        let absurd = || BudgetError::Absurd { name: m.name.clone() };
        if m.kv_bytes_per_page == 0 {
            return Err(absurd());
        }
        weights = weights.checked_add(m.weight_bytes).ok_or_else(absurd)?;
        activations = activations.checked_add(m.activation_bytes).ok_or_else(absurd)?;
        per_page = per_page.checked_add(m.kv_bytes_per_page).ok_or_else(absurd)?;
    }
    let fixed = weights.saturating_add(activations);
    // Page ids are u32, and u32::MAX is left free as "no page".
    let pages = (budget_bytes.saturating_sub(fixed) / per_page).min(u64::from(u32::MAX) - 1) as usize;
    let needed_tokens = USEFUL_TOKENS.min(shortest);
    let needed_pages = needed_tokens.div_ceil(PAGE_TOKENS);
    if pages < needed_pages {
        return Err(BudgetError::TooSmall {
            budget_bytes,
            weight_bytes: weights,
            activation_bytes: activations,
            tokens: pages * PAGE_TOKENS,
            needed_tokens,
            needed_bytes: fixed.saturating_add(per_page.saturating_mul(needed_pages as u64)),
        });
    }
    Ok(JointPlan { pages: 0, tokens: 0, rows: models.iter().map(row).collect(), budget_bytes }
        .with_pages(pages))
}

fn row(m: &ModelDemand) -> PlanRow {
    PlanRow {
        name: m.name.clone(),
        weight_bytes: m.weight_bytes,
        activation_bytes: m.activation_bytes,
        kv_bytes: 0,
        kv_bytes_per_page: m.kv_bytes_per_page,
    }
}

impl JointPlan {
    /// Bytes that the plan gives out.
    pub fn used_bytes(&self) -> u64 {
        self.rows.iter().map(|r| r.weight_bytes + r.activation_bytes + r.kv_bytes).sum()
    }

    fn with_pages(mut self, pages: usize) -> Self {
        self.pages = pages;
        self.tokens = pages * PAGE_TOKENS;
        for row in &mut self.rows {
            row.kv_bytes = row.kv_bytes_per_page * pages as u64;
        }
        self
    }
}

impl fmt::Display for JointPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0).max(5);
        let mut line = |name: &str, cells: [String; 4]| {
            let [a, b, c, d] = cells;
            writeln!(f, "{name:<width$}  {a:>12}  {b:>12}  {c:>12}  {d:>12}")
        };
        let heads = ["weights", "activations", "KV cache", "KV/token"].map(str::to_owned);
        line("model", heads)?;
        for r in &self.rows {
            let cells =
                [r.weight_bytes, r.activation_bytes, r.kv_bytes, r.kv_bytes_per_page / PAGE_TOKENS as u64];
            line(&r.name, cells.map(show_bytes))?;
        }
        let total = |part: fn(&PlanRow) -> u64| self.rows.iter().map(part).sum::<u64>();
        let cells = [
            total(|r| r.weight_bytes),
            total(|r| r.activation_bytes),
            total(|r| r.kv_bytes),
            total(|r| r.kv_bytes_per_page) / PAGE_TOKENS as u64,
        ];
        line("total", cells.map(show_bytes))?;
        write!(
            f,
            "{} of {} given out; {} tokens fit on every model ({} pages of {PAGE_TOKENS})",
            show_bytes(self.used_bytes()),
            show_bytes(self.budget_bytes),
            self.tokens,
            self.pages
        )
    }
}

/// Bytes in the largest binary unit that keeps at least one whole, with two decimals.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}
