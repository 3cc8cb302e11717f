//! The joint plan as a pure function: table tests (bug-log L28).

use tokenrouter_engine::budget::{BudgetError, ModelDemand, USEFUL_TOKENS, plan};

fn demand(name: &str, weights: u64, activations: u64, per_page: u64, context: usize) -> ModelDemand {
    ModelDemand {
        name: name.into(),
        weight_bytes: weights,
        activation_bytes: activations,
        kv_bytes_per_page: per_page,
        context_len: context,
    }
}

#[test]
fn the_largest_common_capacity() {
    // (models, budget, pages): uneven bytes per page, one model, exact fits and one byte short.
    let slm = demand("slm", 1000, 100, 10, 64);
    let llm = demand("llm", 5000, 400, 90, 64);
    let cases = [
        (vec![slm.clone(), llm.clone()], 6500 + 400, Some(4)),
        (vec![slm.clone(), llm.clone()], 6500 + 499, Some(4)),
        (vec![slm.clone(), llm.clone()], 6500 + 500, Some(5)),
        (vec![llm.clone(), slm.clone()], 6500 + 100_000, Some(1000)),
        (vec![slm.clone()], 1100 + 40, Some(4)),
        (vec![slm.clone()], 1100 + 39, None),
        (vec![slm.clone(), llm.clone()], 6500 + 399, None),
        (vec![slm.clone(), llm.clone()], 6000, None),
        (vec![slm.clone(), llm.clone()], 0, None),
    ];
    for (models, budget, want) in cases {
        match (plan(&models, budget), want) {
            (Ok(plan), Some(pages)) => {
                assert_eq!((plan.pages, plan.tokens), (pages, pages * 16));
                assert!(plan.used_bytes() <= budget);
                let next: u64 = models.iter().map(|m| m.kv_bytes_per_page).sum();
                assert!(plan.used_bytes() + next > budget, "one more page would have fitted");
            }
            (Err(BudgetError::TooSmall { budget_bytes, needed_bytes, needed_tokens, .. }), None) => {
                assert_eq!((budget_bytes, needed_tokens), (budget, 64));
                assert!(plan(&models, needed_bytes).is_ok() && plan(&models, needed_bytes - 1).is_err());
            }
            (found, want) => panic!("budget {budget}: {found:?}, wanted {want:?}"),
        }
    }
}

#[test]
fn a_useful_request_must_fit() {
    let long = [demand("m", 0, 0, 16, 100_000)];
    let pages = USEFUL_TOKENS as u64 / 16;
    assert!(plan(&long, 16 * pages).is_ok());
    let error = plan(&long, 16 * pages - 1).unwrap_err().to_string();
    for number in ["240 tokens", "256 are needed", "256 bytes"] {
        assert!(error.contains(number), "{number} not in {error}");
    }
}

#[test]
fn impossible_demands() {
    assert_eq!(plan(&[], 1 << 40), Err(BudgetError::NoModels));
    let absurd = BudgetError::Absurd { name: "b".into() };
    assert_eq!(
        plan(&[demand("a", 1, 1, 1, 64), demand("b", u64::MAX, 1, 1, 64)], u64::MAX),
        Err(absurd.clone())
    );
    assert_eq!(plan(&[demand("b", 1, 1, 0, 64)], u64::MAX), Err(absurd));
    // The whole address space: pages stay inside u32 ids.
    let plan = plan(&[demand("a", 1, 1, 1, 64)], u64::MAX).unwrap();
    assert_eq!(plan.pages, u32::MAX as usize - 1);
}

#[test]
fn the_table_names_everyone() {
    let models = [
        demand("slm", 350 << 10, 2048, 3 << 10, 4096),
        demand("a-large-model", 3 << 30, 5 << 20, 512 << 10, 4096),
    ];
    let text = plan(&models, 4 << 30).unwrap().to_string();
    for part in [
        "slm",
        "a-large-model",
        "total",
        "350.00 KiB",
        "3.00 GiB",
        "32.00 KiB",
        "of 4.00 GiB",
        "pages of 16",
        "tokens fit",
    ] {
        assert!(text.contains(part), "{part:?} not in\n{text}");
    }
    let widths: Vec<usize> = text.lines().take(4).map(str::len).collect();
    assert!(widths.iter().all(|w| *w == widths[0]), "{text}");
}
