#!/usr/bin/env python3
"""Writes tests/data/expressions.txt: random texts of masks and logits, and what a C++ compiler makes of them.

Each line has a text, b, h, q_idx, kv_idx, sq, sk, the score and the result, floats in hexadecimal. The texts are compiled as
they stand, so that types, precedence and rounding are those of C++ and of nobody's parser. Ints stay small enough not to
overflow, and divisors away from 0: what C++ leaves undefined is spec/expression.h's own.
"""

import random
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ["b", "h", "q_idx", "kv_idx", "sq", "sk"]
COUNT = 160

PRELUDE = """
#include <cmath>
#include <cstdio>
#include <limits>
#include <type_traits>
#undef INFINITY
#define INFINITY std::numeric_limits<float>::infinity()
namespace texts {
template <class A, class B> auto min(A a, B b) {
  using T = decltype(a + b);
  const T x = a, y = b;
  if constexpr (std::is_same_v<T, float>) return std::fmin(x, y); else return x < y ? x : y;
}
template <class A, class B> auto max(A a, B b) {
  using T = decltype(a + b);
  const T x = a, y = b;
  if constexpr (std::is_same_v<T, float>) return std::fmax(x, y); else return x > y ? x : y;
}
template <class A> auto abs(A a) { using T = decltype(+a); const T x = a; return x < 0 ? T(-x) : x; }
float fabsf(float x) { return std::fabs(x); }
float fminf(float x, float y) { return std::fmin(x, y); }
float tanh(float x) { return std::tanh(x); }
float exp(float x) { return std::exp(x); }
float log(float x) { return std::log(x); }
float sqrt(float x) { return std::sqrt(x); }
float sin(float x) { return std::sin(x); }
float cos(float x) { return std::cos(x); }
float pow(float x, float y) { return std::pow(x, y); }
void show(const char* text, const int (&at)[6], float score, double result) {
  std::printf("%s\\t%d %d %d %d %d %d %a\\t%a\\n", text, at[0], at[1], at[2], at[3], at[4], at[5], score, result);
}
"""


class Texts:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def of(self, *makers):
        return self.random.choice(makers)()

    def parenthesized(self, text):
        return f"({text})" if self.random.random() < 0.7 else text

    def integer(self, depth):
        r = self.random
        if depth == 0:
            return r.choice([*NAMES, str(r.randrange(30))])
        a, b = self.integer(depth - 1), self.integer(depth - 1)
        small = str(1 + r.randrange(7))
        return self.of(lambda: f"{self.parenthesized(a)} + {b}", lambda: f"{a} - ({b})", lambda: f"({a}) * {small}",
                       lambda: f"({a}) / {small}", lambda: f"({a}) % {small}", lambda: f"-({a})", lambda: f"abs({a})",
                       lambda: f"min({a}, {b})", lambda: f"max({a}, {b})", lambda: f"({a} & {b})", lambda: f"({a} ^ {b})",
                       lambda: f"({a} >> {small})", lambda: f"(({a}) % 64 << {small})", lambda: f"~({a})",
                       lambda: f"({self.boolean(depth - 1)} ? {a} : {b})", lambda: f"int(0.5f * ({a}))",
                       lambda: f"({a} | {self.boolean(depth - 1)})")

    def number(self, depth, score):
        r = self.random
        if depth == 0:
            return r.choice(["score" if score else "0.75f", "score" if score else "float(h)", f"{r.randrange(1, 40) / 8}f",
                             f"{r.randrange(1, 9)}e-1f"])
        a, b = self.number(depth - 1, score), self.number(depth - 1, score)
        i = self.integer(depth - 1)
        return self.of(lambda: f"{self.parenthesized(a)} + {b}", lambda: f"{self.parenthesized(a)} - ({b})", lambda: f"({a}) * ({i})",
                       lambda: f"({a}) * ({b})", lambda: f"({a}) / (1.5f + abs({b}))", lambda: f"-({a})", lambda: f"abs({a})",
                       lambda: f"min({a}, {b})", lambda: f"max({a}, {i})", lambda: f"tanh({a})", lambda: f"sqrt(1 + abs({a}))",
                       lambda: f"log(2 + abs({a}))", lambda: f"exp(-abs({a}))", lambda: f"sin({a})", lambda: f"cos({a})",
                       lambda: f"pow(1 + abs({a}), 0.5f)", lambda: f"({self.boolean(depth - 1)} ? {a} : {b})",
                       lambda: f"fminf({a}, {i})", lambda: f"({i}) / (0.5f + fabsf({a}))")

    def boolean(self, depth):
        if depth == 0:
            return f"{self.random.choice(NAMES)} {self.random.choice(['<', '<=', '>', '>=', '==', '!='])} {self.integer(0)}"
        a, b = self.boolean(depth - 1), self.boolean(depth - 1)
        i, j = self.integer(depth - 1), self.integer(depth - 1)
        return self.of(lambda: f"{i} <= {j}", lambda: f"{i} != {j}", lambda: f"({a}) && ({b})", lambda: f"{a} || {b}",
                       lambda: f"!({a})", lambda: f"({a}) == ({b})", lambda: f"({i}) % 3 == 1", lambda: f"{self.number(1, False)} > {i}",
                       lambda: f"({a} ? {b} : !({b}))", lambda: f"({a}) & ({b})", lambda: f"({a}) ^ ({b})", lambda: f"({i}) && {a}")


def main():
    texts = Texts(1)
    body, calls = [], []
    for n in range(COUNT):
        is_mask = n % 2 == 0
        while True:
            text = texts.boolean(3) if is_mask else texts.number(3, True)
            if len(text) < 400:
                break
        kind = "bool" if is_mask else "float"
        body.append(f"{kind} f{n}([[maybe_unused]] float score, [[maybe_unused]] int b, [[maybe_unused]] int h, "
                    f"[[maybe_unused]] int q_idx, [[maybe_unused]] int kv_idx, [[maybe_unused]] int sq, "
                    f"[[maybe_unused]] int sk) {{ return {text}; }}")
        for _ in range(3):
            r = texts.random
            at = [r.randrange(4), r.randrange(8), r.randrange(300), r.randrange(300), 1 + r.randrange(300), 1 + r.randrange(300)]
            score = r.randrange(-64, 64) / 16
            arguments = ", ".join(map(str, at))
            calls.append(f'show("{"mask" if is_mask else "score"}\\t{text}", {{{arguments}}}, {score}f, f{n}({score}f, {arguments}));')
    source = PRELUDE + "\n".join(body) + "\n}\nint main() { using namespace texts;\n" + "\n".join(calls) + "\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.cpp"
        path.write_text(source)
        subprocess.run(["c++", "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=all",
                        "-o", Path(folder) / "texts", path], check=True)
        table = subprocess.run([Path(folder) / "texts"], check=True, capture_output=True, text=True).stdout
    header = "# Made by tests/tools/make_expressions.py: kind, text, b h q_idx kv_idx sq sk score, what C++ makes of it.\n"
    Path(sys.argv[1]).write_text(header + table)


if __name__ == "__main__":
    main()
