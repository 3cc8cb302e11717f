//! Where checkpoints come from: a local folder, or a Hugging Face repository in the local cache.

/// Whether a text has the shape of a repository's name: `org/name`.
pub fn is_repo_name(text: &str) -> bool {
    let mut parts = text.split('/');
    let part = |part: Option<&str>| {
        part.is_some_and(|part| {
            let word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && part.len() <= 96 && part.chars().all(word) && !part.starts_with(['-', '.'])
        })
    };
    part(parts.next()) && part(parts.next()) && parts.next().is_none()
}
