"""What the load generators ask, in the file format of each, and a tokenizer for those that insist on one of their own.

The tokenizer only has to count: it takes a byte for a token. Token counts that matter come from the server's usage.
"""

import json

QUESTIONS = [
    "There are 3 boxes with 12 pens in each box. How many pens are there in total?",
    "Anna has 45 apples. She gives 17 of them to Ben. How many apples does she have left?",
    "A train goes 60 km in an hour. How far does it go in 3 hours?",
    "Tom reads 8 pages a day. How many pages does he read in a week?",
]


def lines(path, key):
    """A file with one object a line: {key: question}."""
    path.write_text("".join(json.dumps({key: question}) + "\n" for question in QUESTIONS * 2))
    return path


def sharegpt(path):
    """A file of conversations of two turns, as ShareGPT has them."""
    turns = [[{"from": "human", "value": question}, {"from": "gpt", "value": "Let me see."}] for question in QUESTIONS * 2]
    path.write_text(json.dumps([{"conversations": turn} for turn in turns]))
    return path


def byte_tokenizer(folder):
    """A tokenizer of transformers in a folder."""
    import tokenizers
    import transformers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytewise = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = tokenizers.decoders.ByteLevel()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=bytewise, chat_template=template)
    whole.save_pretrained(folder)
    return folder
