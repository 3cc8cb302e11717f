//! Two pages for people, each one self-contained file: no other file, font or host is asked for anything.

macro_rules! page {
    ($title:literal, $style:literal, $body:literal, $script:literal) => {
        concat!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<title>",
            $title,
            "</title>\n",
            include_str!("head.html"),
            "<style>\n",
            include_str!("style.css"),
            include_str!($style),
            "</style>\n</head>\n<body>\n",
            include_str!($body),
            "<script>\n",
            include_str!("common.js"),
            include_str!($script),
            "</script>\n</body>\n</html>\n"
        )
    };
}

/// `/`: a prompt box, and an answer in the colours of its writers.
pub fn try_page() -> &'static [u8] {
    page!("TokenRouter", "try.css", "try.html", "try.js").as_bytes()
}

/// `/status`: the models at work, live.
pub fn status_page() -> &'static [u8] {
    page!("TokenRouter status", "status.css", "status.html", "status.js").as_bytes()
}

/// The media type of both.
pub const CONTENT_TYPE: &str = "text/html; charset=utf-8";

/// What a browser may do with them: run their own script and style, and talk to the host that they came from.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
     img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_name_no_other_host_and_no_other_file() {
        for page in [try_page(), status_page()] {
            let text = std::str::from_utf8(page).unwrap();
            assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
            // The name space of drawings is a name, not an address.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for part in ["http:", "https:", "//cdn", "src=\"", "@import", "url("] {
                assert!(!text.contains(part), "{part}");
            }
        }
    }
}
