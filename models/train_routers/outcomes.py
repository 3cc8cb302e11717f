"""What a token does to the whole answer: the verification of labels, for prompts whose right answer is known.

Where the best tokens of the two models differ, most differences change nothing that matters (another word for the same
thing). So the large model finishes the answer twice, once behind each token. The small model's token is harmful when
the answer behind it is wrong and the one behind the large model's token is right.
"""

import re

GROUP = 128  # answers that are written at a time


def last_number(text):
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(found[-1].replace(",", "")) if found else None


CHECKS = {
    "sentence": lambda said, right: f"The answer is {right}." in said,
    "last-number": lambda said, right: last_number(said) is not None and last_number(said) == last_number(right),
    "exact": lambda said, right: said == right.strip(),
}


def passes(check, text, right):
    """The checks of `tokenrouter eval`: what stands before `</think>` is no part of the answer."""
    return CHECKS[check](text.rsplit("</think>", 1)[-1].strip(), str(right))


def finish(model, starts, limit):
    """The rest of each start, greedily; longer ones and shorter ones apart, so that little is padded."""
    order = sorted(range(len(starts)), key=lambda i: len(starts[i]))
    out = [None] * len(starts)
    for begin in range(0, len(order), GROUP):
        group = order[begin : begin + GROUP]
        for i, rest in zip(group, model.greedy([starts[i] for i in group], limit)):
            out[i] = rest
    return out


def right_answers(pair, model, check, lines, prompts, limit):
    """For each line whether the model's own answer is right."""
    answers = finish(model, prompts, limit)
    return [a is not None and passes(check, pair.decode(a), line["answer"]) for line, a in zip(lines, answers)]


def harmful(pair, check, batch, rows, limit):
    """Which rows of a batch of (line, prompt, answer) have a harmful token of the small model, `[rows]`.

    `rows` is label.py's: `small_best`, `large_best`, `token`, and `at`, each row's (number in the batch, place in the answer).
    """
    out = rows["small_best"] != rows["large_best"]
    asked = [i for i in out.nonzero()[:, 0].tolist() if "answer" in batch[rows["at"][i][0]][0]]
    good = {}
    for best in ("large_best", "small_best"):
        # Where the large model is wrong too, its help is of no use, whatever the small one does.
        for_whom = asked if best == "large_best" else [i for i in asked if good["large_best"][i]]
        good[best] = dict(zip(for_whom, good_behind(pair, check, batch, rows, best, for_whom, limit)))
    for i in asked:
        out[i] = good["large_best"][i] and not good["small_best"][i]
    return out


def good_behind(pair, check, batch, rows, best, asked, limit):
    """Whether the answer is right that the large model writes behind the token `best` of the rows `asked`."""
    # Where its best tokens are those of the text from here to the end, that text is what it would write.
    follows, to_the_end = [False] * len(rows["at"]), True
    for i in reversed(range(len(rows["at"]))):
        last = rows["at"][i][1] == len(batch[rows["at"][i][0]][2]) - 1
        to_the_end = bool(rows["large_best"][i] == rows["token"][i]) and (last or to_the_end)
        follows[i] = to_the_end
    known, starts = {}, {}
    for i in asked:
        number, place = rows["at"][i]
        line, prompt, answer = batch[number]
        token = int(rows[best][i])
        if best == "large_best" and follows[i]:
            known[i] = answer
        elif token in pair.large.ends:
            known[i] = answer[:place] + [token]
        else:
            starts[i] = prompt + answer[:place] + [token]
    for i, rest in zip(starts, finish(pair.large, list(starts.values()), limit)):
        prompt = batch[rows["at"][i][0]][1]
        known[i] = None if rest is None else starts[i][len(prompt) :] + rest
    right = lambda i: passes(check, pair.decode(known[i]), batch[rows["at"][i][0]][0]["answer"])
    return [known[i] is not None and right(i) for i in asked]
