#!/usr/bin/env bash
# Builds a program of more than 200 MB with full DWARF: optimized C++ whose functions are inlined into each other,
# several deep. One unit is compiled; the others are copies of it, alike but for their place. usage: program.sh OUTPUT
set -euo pipefail
output=$(realpath -m "${1:?usage: program.sh OUTPUT}")
units=${SELFWIND_BENCH_UNITS:-140}
work=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 - >unit.cpp <<'PYTHON'
print("namespace unit {")
print("struct Sink { unsigned long low, high; };")
print("""template <int N> struct Step {
  static inline __attribute__((always_inline)) unsigned long mix(unsigned long value, const unsigned char *bytes, int count) {
    unsigned long folded = value * (2654435761u + N);
    for (int place = 0; place < count; place += N + 1) {
      unsigned long item = bytes[place] ^ (folded >> (N & 15));
      folded += item << 1;
    }
    return Step<N - 1>::mix(folded, bytes + 1, count - 1) ^ folded;
  }
};
template <> struct Step<0> {
  static inline __attribute__((always_inline)) unsigned long mix(unsigned long value, const unsigned char *bytes, int count) {
    return count > 0 ? value + bytes[0] : value;
  }
};""")
for number in range(400):
    print(f"""__attribute__((noinline)) unsigned long worker_{number}(const unsigned char *bytes, int count, Sink &sink) {{
  unsigned long first = Step<{1 + number % 4}>::mix({number}, bytes, count);
  unsigned long second = Step<{1 + number % 3}>::mix(first, bytes, count / 2);
  sink.low += first;
  sink.high ^= second;
  return first + second;
}}""")
print('extern "C" unsigned long all(const unsigned char *bytes, int count) {\n  Sink sink{};\n  unsigned long sum = 0;')
for number in range(400):
    print(f"  sum += worker_{number}(bytes, count, sink);")
print("  return sum;\n}\n}")
PYTHON

c++ -O2 -g -fno-pie -c -o unit.o unit.cpp
{
  for ((unit = 0; unit < units; unit++)); do
    printf 'extern "C" unsigned long all_%d(const unsigned char *, int);\n' "$unit"
  done
  echo 'int main(int argc, char **argv) { unsigned long sum = 0;'
  for ((unit = 0; unit < units; unit++)); do
    printf '  sum += all_%d((const unsigned char *)argv[0], argc);\n' "$unit"
  done
  echo '  return sum & 1; }'
} >main.cpp
c++ -O1 -g -fno-pie -c main.cpp
for ((unit = 0; unit < units; unit++)); do
  # Everything else is the unit's own. Its texts are not merged with those of the others: names met before would be
  # cheaper than in a program that is large because it has many.
  objcopy --redefine-sym "all=all_$unit" --keep-global-symbol "all_$unit" --remove-section .group \
    --set-section-flags .debug_str=debug,readonly --set-section-flags .debug_line_str=debug,readonly \
    unit.o "unit_$unit.o"
done
c++ -no-pie -o program main.o unit_*.o -Wl,--build-id
mv program "$output"
