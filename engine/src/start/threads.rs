//! How many threads a model gets that does not say.

/// Divides `cores` over models in proportion to the bytes of their weights, at least one each. Every model evaluates every
/// token of an answer sooner or later (what the others wrote, it catches up), so the work of a model is in proportion to
/// its weights: on the CPU, where steps beyond a few rows are bound by arithmetic, also its time.
pub(super) fn shares(cores: usize, weights: &[u64]) -> Vec<usize> {
    let mut shares = vec![1; weights.len()];
    for _ in weights.len()..cores {
        // Whoever has the most bytes per thread gets the next; of equals the last, which is the larger model as a rule.
        let load = |model: &usize| weights[*model] as f64 / shares[*model] as f64;
        let next = (0..weights.len()).max_by(|a, b| load(a).total_cmp(&load(b)));
        if let Some(next) = next {
            shares[next] += 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_go_where_the_weights_are_and_nobody_has_none() {
        let pair = [269, 983];
        assert_eq!(shares(1, &pair), [1, 1]);
        assert_eq!(shares(2, &pair), [1, 1]);
        assert_eq!(shares(4, &pair), [1, 3]);
        assert_eq!(shares(8, &pair), [2, 6]);
        assert_eq!(shares(5, &[7]), [5]);
        assert_eq!(shares(6, &[5, 5, 5]), [2, 2, 2]);
        assert_eq!(shares(3, &[0, 0]), [1, 2]);
        assert!(shares(4, &[]).is_empty());
    }
}
