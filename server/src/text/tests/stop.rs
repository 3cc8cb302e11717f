use crate::text::StopMatcher;
use crate::text::fixtures::Random;

/// By definition: the first end of any stop string; of several there, the longest, then the first listed.
fn brute_force(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    (0..=text.len()).filter(|&end| text.is_char_boundary(end)).find_map(|end| {
        let here = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_str()));
        here.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index)).map(|(index, _)| (index, end))
    })
}

/// The longest suffix that begins a stop string, by definition.
fn held(text: &str, stops: &[String]) -> usize {
    let begins =
        |at: &usize| stops.iter().any(|stop| stop.len() > text.len() - at && stop.starts_with(&text[*at..]));
    (0..text.len()).filter(|&at| text.is_char_boundary(at)).find(begins).map_or(0, |at| text.len() - at)
}

#[test]
fn any_split_gives_what_a_search_in_the_whole_text_gives() {
    let mut random = Random(4);
    let letters = ["a", "b", "é", "€"];
    let word = |random: &mut Random, most: usize| -> String {
        (0..=random.below(most)).map(|_| *random.pick(&letters)).collect()
    };
    let mut matches = 0;
    for _ in 0..20_000 {
        let stops: Vec<String> = (0..1 + random.below(3)).map(|_| word(&mut random, 4)).collect();
        let text = word(&mut random, 16);
        let include = random.below(2) == 0;
        let mut matcher = StopMatcher::new(stops.clone(), include);
        let (mut out, mut found, mut seen) = (String::new(), None, String::new());
        let chars: Vec<char> = text.chars().collect();
        let mut at = 0;
        while at < chars.len() && found.is_none() {
            let to = (at + random.below(4)).min(chars.len());
            let piece: String = chars[at..to].iter().collect();
            seen.push_str(&piece);
            at = to;
            found = matcher.push(&piece, &mut out);
            if found.is_none() {
                assert_eq!(out.len(), seen.len() - held(&seen, &stops), "{stops:?} in {seen:?}");
            }
        }
        if found.is_none() {
            matcher.finish(&mut out);
        } else {
            matches += 1;
            assert_eq!(matcher.push("aab", &mut out), None);
        }
        let expected = brute_force(&text, &stops);
        assert_eq!(found, expected.map(|(index, _)| index), "{stops:?} in {text:?}");
        let shown = expected.map_or(text.as_str(), |(index, end)| {
            &text[..if include { end } else { end - stops[index].len() }]
        });
        assert_eq!(out, shown, "{stops:?} in {text:?}");
    }
    assert!(matches > 5000);
}

#[test]
fn overlapping_prefixes_and_inner_matches() {
    let run = |stops: &[&str], pieces: &[&str]| {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect(), false);
        let mut out = String::new();
        let found = pieces.iter().find_map(|piece| matcher.push(piece, &mut out));
        if found.is_none() {
            matcher.finish(&mut out);
        }
        (out, found.map(|index| matcher.stop(index).to_owned()))
    };
    assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some("aab".into())));
    assert_eq!(
        run(&["DEFGHIJ"], &["ABC", "DEF", "G", "HI", "J", "K"]),
        ("ABC".into(), Some("DEFGHIJ".into()))
    );
    assert_eq!(run(&["DE"], &["DEF"]), (String::new(), Some("DE".into())));
    assert_eq!(run(&["xyz"], &["ax", "y"]), ("axy".into(), None));
    assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
}
