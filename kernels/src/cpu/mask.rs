//! Padding rows of the vocabulary.

/// Sets `logits[i][real_vocab..]` to negative infinity in each of the `n` rows of `vocab` logits:
/// ids that no tokenizer knows must be seen by nothing that reads logits.
///
/// # Panics
/// When `vocab` is 0 or the length is no multiple of it.
pub fn mask_padding(logits: &mut [f32], vocab: usize, real_vocab: usize) {
    assert!(
        vocab > 0 && logits.len().is_multiple_of(vocab),
        "{} logits of a vocabulary of {vocab}",
        logits.len()
    );
    if real_vocab < vocab {
        for row in logits.chunks_exact_mut(vocab) {
            row[real_vocab..].fill(f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::mask_padding;

    #[test]
    fn only_padding_is_masked() {
        let mut logits = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        mask_padding(&mut logits, 3, 2);
        assert_eq!(logits, [1.0, 2.0, f32::NEG_INFINITY, 4.0, 5.0, f32::NEG_INFINITY]);
        mask_padding(&mut logits, 3, 9);
        assert_eq!(logits[4], 5.0);
    }
}
