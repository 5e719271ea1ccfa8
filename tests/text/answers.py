"""Random answers of a model as text, for whoever parses them. Knows no parser."""

import random


class Answers:
    """Random answers within what both parsers read alike."""

    def __init__(self, seed):
        self.pick = random.Random(seed)

    def prose(self):
        words = [
            "Hello",
            " world",
            "\n",
            "\n\n",
            " 2 < 3",
            "é漢🙂",
            ".",
            "<b>",
            "</th",
            "</",
            '\\ "q"',
        ]
        return "".join(self.pick.choices(words, k=self.pick.randint(0, 6)))

    def content(self):
        """Prose before a block: blanks at its end are newlines only."""
        text = self.prose()
        return text + "." * (text != text.rstrip() and self.pick.random() < 0.5)

    def value(self):
        if self.pick.random() < 0.6:
            texts = [
                "Oslo",
                " a\n",
                "",
                "42",
                'q"\\\t',
                "<b>",
                "</think>",
                "<｜User｜>",
                "{}",
                "é\n\n",
            ]
            return "".join(self.pick.choices(texts, k=2)), "true"
        return self.pick.choice(["1", "[1,2.50]", '{"a": null}', "true", '"s"', "-1e9"]), "false"

    def call(self, space):
        mark = "｜DSML｜" + space
        lines = [f'<{mark}invoke name="{self.pick.choice(["f", "get_x"])}">']
        for name in self.pick.sample(["city", "days", "é", "x_y"], self.pick.randint(0, 3)):
            value, string = self.value()
            lines.append(
                f'<{mark}parameter name="{name}" string="{string}">{value}</{mark}parameter>'
            )
        return "\n".join([*lines, f"</{mark}invoke>"])

    def block(self):
        space = self.pick.choice(["", " "])
        word = "calls" if space else self.pick.choice(["tool_calls", "function_calls", "tool-cals"])
        calls = [self.call(space) for _ in range(self.pick.randint(0, 3))]
        mark = "｜DSML｜" + space
        return "\n".join([f"<{mark}{word}>", *calls, f"</{mark}{word}>"]) + self.prose()

    def answer(self, start):
        if start == "tools":
            return "\n".join(self.call("") for _ in range(self.pick.randint(1, 2)))
        text = ""
        if start == "reasoning":
            text = self.prose()
            if self.pick.random() < 0.8:
                text += "</think>"
        text += self.prose()
        if self.pick.random() < 0.5:
            text = text.rstrip() + "\n" * self.pick.randint(0, 3) + self.block()
        return text
