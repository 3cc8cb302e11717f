//! Cutting a prompt to its last tokens, only ever when the request asks for it.

use crate::api::ApiError;
use crate::api::fields::Fields;

/// How much of a prompt to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncate {
    /// As much as fits the context together with the answer.
    ToFit,
    /// At most so many tokens.
    Last(usize),
}

impl Truncate {
    /// Reads `truncate_prompt_tokens`: -1, or 1 to the context's length.
    pub(crate) fn parse(fields: &Fields<'_>, context_len: usize) -> Result<Option<Self>, ApiError> {
        const NAME: &str = "truncate_prompt_tokens";
        let most = i64::try_from(context_len).unwrap_or(i64::MAX);
        let right = format!("-1 or an integer from 1 to {most}");
        match fields.int(NAME, i64::MIN..=i64::MAX).map_err(|_| fields.invalid(NAME, &right))? {
            None => Ok(None),
            Some(-1) => Ok(Some(Self::ToFit)),
            Some(last) if (1..=most).contains(&last) => Ok(Some(Self::Last(last as usize))),
            Some(_) => Err(fields.invalid(NAME, &right)),
        }
    }

    /// Drops tokens from the front of a prompt; `room` tokens fit beside the answer. A beginning-of-sequence token that
    /// the tokenizer put in front (`bos`) stays there.
    pub(crate) fn apply(self, ids: &mut Vec<u32>, room: usize, bos: Option<u32>) {
        let keep = match self {
            Self::ToFit => room.max(1),
            Self::Last(last) => last,
        };
        if ids.len() <= keep {
            return;
        }
        let first = ids.first().copied().filter(|id| Some(*id) == bos && keep > 1);
        ids.drain(..ids.len() - keep);
        if let (Some(bos), Some(first)) = (first, ids.first_mut()) {
            *first = bos;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_prompt_stays() {
        let cut = |how: Truncate, bos: Option<u32>| {
            let mut ids = vec![1, 2, 3, 4, 5];
            how.apply(&mut ids, 3, bos);
            ids
        };
        assert_eq!(cut(Truncate::Last(5), None), [1, 2, 3, 4, 5]);
        assert_eq!(cut(Truncate::Last(2), None), [4, 5]);
        assert_eq!(cut(Truncate::ToFit, None), [3, 4, 5]);
        assert_eq!(cut(Truncate::ToFit, Some(1)), [1, 4, 5]);
        assert_eq!(cut(Truncate::ToFit, Some(9)), [3, 4, 5]);
        assert_eq!(cut(Truncate::Last(1), Some(1)), [5]);
    }
}
