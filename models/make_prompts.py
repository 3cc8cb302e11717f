#!/usr/bin/env python3
"""Write short instruction prompts to train routers on, none of which is in prompts50.jsonl.

    python models/make_prompts.py OUT.jsonl [--count 400] [--seed 1]

A prompt is one of the sentences below with words put into it. Equal seeds give equal files. Python 3.9, standard
library only.
"""

import argparse
import json
import os
import random
import string

WORDS = dict(
    thing="bicycle,kettle,candle,umbrella,mirror,compass,telescope,clock,bridge,magnet,sponge,ladder,battery,violin,"
    "windmill,passport,suitcase,lantern,pencil sharpener,wheelbarrow".split(","),
    animal="owl,beaver,dolphin,hedgehog,camel,spider,salmon,penguin,fox,ant,horse,bat,turtle,wolf,sparrow".split(","),
    topic="volcanoes,earthquakes,the water cycle,photosynthesis,gravity,the printing press,vaccines,inflation,"
    "the tides,recycling,sleep,friction,rainbows,bacteria,the moon,trade,electricity,memory,soil,democracy".split(","),
    place="a harbour at dawn,an old library,a busy kitchen,a mountain village in winter,an empty railway station,"
    "a market on a Saturday,a forest after a storm,a garden in spring,a quiet museum,a desert road".split(","),
    task="clean a window,repair a small hole in a shirt,make a vegetable soup,plant a rose,pack for a hike,"
    "learn ten new words a day,paint a wooden chair,save water at home,organise a desk,bake bread,"
    "wash a woollen sweater,plan a party,"
    "write a good summary,choose a pair of shoes,grow tomatoes on a balcony".split(","),
    word="ancient,generous,hollow,curious,reluctant,brisk,transparent,scarce,loyal,clumsy,vivid,harvest,"
    "shelter,courage,narrow,blunt,patience,rumour,eager,gentle".split(","),
    person="a teacher,a landlord,a dentist,a cousin,a customer,a new flatmate,a football coach,a librarian,"
    "a former boss,a bookshop".split(","),
    wish="thank them for their help,ask for a later appointment,say that a parcel never came,apologise for the noise,"
    "ask for advice about a trip,invite them to dinner,cancel a subscription,ask for a refund,"
    "tell them about a change of address,recommend a book".split(","),
    language="French,Spanish,German,Italian,Portuguese".split(","),
    sentence="The window is open.|We have lost our keys.|My sister works in a hospital.|It is going to rain tomorrow.|"
    "How much does this coat cost?|The children are playing outside.|I have never been to the sea.|"
    "Please close the door behind you.|The soup is too hot.|Our flight was cancelled.|He forgot his umbrella.|"
    "The museum opens at ten.".split("|"),
    country="Norway,Kenya,Peru,Japan,Portugal,Canada,Egypt,Vietnam,Greece,Finland,Chile,Morocco".split(","),
    job="baker,nurse,pilot,carpenter,journalist,farmer,engineer,gardener,judge,translator".split(","),
    code="reverses a string|counts the vowels of a text|adds up a list of numbers|checks whether a number is prime|"
    "finds the smallest number of a list|removes duplicates from a list|turns Celsius into Fahrenheit|"
    "reads a file line by line|checks whether a word is a palindrome|computes a factorial".split("|"),
    programming="Python,JavaScript,Rust,C,Go".split(","),
    food="pancakes,lentil soup,rice,apple pie,scrambled eggs,tomato sauce,porridge,potato salad".split(","),
    feeling="proud,nervous,grateful,homesick,impatient,relieved".split(","),
)
PAIRS = (
    "lake,ocean|comet,asteroid|violin,cello|novel,poem|butter,margarine|moth,butterfly|rent,mortgage|virus,bacterium|"
    "island,peninsula|debit card,credit card|alligator,crocodile|hill,mountain|jam,jelly|simile,metaphor"
).split("|")
SENTENCES = [
    "Explain {topic} in simple words.",
    "What would be different without {topic}? Answer in two sentences.",
    "List four facts about {topic}.",
    "Give one example from daily life that has to do with {topic}.",
    "Describe {place} in three sentences.",
    "Write a short story that takes place in {place}.",
    "Write a short poem about {thing1}.",
    "What is {thing1} used for?",
    "Who might have invented {thing1}, and why was it useful?",
    "List three things that could go wrong with {thing1}.",
    "Where does {animal1} live and what does it eat?",
    "Tell a fable about {animal1} and {animal2}.",
    "Write a riddle whose answer is {animal1}.",
    "How do I {task}?",
    "Give five short tips on how to {task}.",
    "What do I need in order to {task}? Make a list.",
    "Use the word \"{word}\" in two different sentences.",
    "Give three words that mean nearly the same as \"{word}\".",
    "What is the opposite of \"{word}\"? Explain your choice.",
    "Write a short message to {person} to {wish}.",
    "Write a formal letter to {person} in order to {wish}.",
    "Translate into {language}: {sentence}",
    "Turn this statement into a question: {sentence}",
    "Rewrite in a more formal style: {sentence}",
    "Continue this story with three sentences: {sentence}",
    "Name three places that a visitor to {country} should see.",
    "What language is spoken in {country}, and what is its capital?",
    "What does a {job} do all day?",
    "Give two advantages and two disadvantages of being a {job}.",
    "Write a {programming} function that {code}.",
    "Explain step by step how a program {code}.",
    "Give me a simple recipe for {food}.",
    "What could I serve with {food}?",
    "What is the difference between the words \"{left}\" and \"{right}\"?",
    "What is {a} plus {b}?",
    "What is {a} minus {small}? Explain how you get there.",
    "A shop sells {small} apples for {b} cents. What do {small2} apples cost?",
    "{name} has {a} coins and gives {small} of them away. How many are left?",
    "Sort these numbers from small to large: {a}, {b}, {small}, {c}.",
    "Write a diary entry of someone who feels {feeling}.",
    "What can I say to a friend who feels {feeling}?",
]


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def fill(draw, sentence):
    left, right = draw.choice(PAIRS).split(",")
    first, second = draw.sample(WORDS["animal"], 2)
    small = draw.randint(2, 9)
    values = dict(
        {kind: draw.choice(words) for kind, words in WORDS.items()},
        thing1=article(draw.choice(WORDS["thing"])), animal1=article(first), animal2=article(second),
        left=left, right=right, name=draw.choice(["Mia", "Jonas", "Aisha", "Leo", "Ivan", "Noor"]),
        a=draw.randint(20, 99), b=draw.randint(20, 99), c=draw.randint(10, 99), small=small, small2=2 * small,
    )
    # Only what the sentence names.
    return sentence.format(**{name: values[name] for _, name, _, _ in string.Formatter().parse(sentence) if name})


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("out", metavar="OUT.jsonl")
    args.add_argument("--count", type=int, default=400)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    held_out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prompts50.jsonl")
    with open(held_out, encoding="utf-8") as f:
        seen = {json.loads(line)["prompt"] for line in f if line.strip()}
    draw, prompts, tries = random.Random(args.seed), [], 0
    while len(prompts) < args.count:
        tries += 1
        if tries > 100 * args.count:
            raise SystemExit(f"there are not {args.count} different prompts; {len(prompts)} were found")
        # Every sentence in its turn, so that none is rare.
        prompt = fill(draw, SENTENCES[tries % len(SENTENCES)])
        if prompt not in seen:
            seen.add(prompt)
            prompts.append(prompt)
    draw.shuffle(prompts)
    with open(args.out, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in prompts)


if __name__ == "__main__":
    main()
