//! The programs, each as a line for `sh`, with `$RUN` in front of the command to record and the directory `$W`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use selfwind_tests::target::is_installed;

/// One program.
pub(crate) struct Program {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// The command that it needs; without it the program is left out.
    needs: &'static str,
    line: &'static str,
}

/// All programs.
pub(crate) const ALL: [Program; 10] = [
    Program {
        name: "python",
        needs: "python3",
        line: "P=$(python3 -c 'import sys; print(sys.executable)'); $RUN \"$P\" -c 'import json, re, zlib
def tree(n): return [tree(n - 1), {\"n\": n}, tree(n - 1)] if n else []
for i in range(60):
    text = json.dumps([{\"key\": k, \"value\": [k * i, str(k)]} for k in range(2500)])
    assert len(json.loads(text)) == 2500 and zlib.crc32(zlib.compress(text.encode(), 4))
    assert len(json.dumps(tree(9))) and sorted(re.findall(r\"[0-9]+\", text), key=int)'",
    },
    Program { name: "gcc", needs: "gcc", line: "$RUN gcc -O2 -c -o $W/big.o $W/big.c" },
    Program {
        name: "node",
        needs: "node",
        line: "$RUN node -e 'let n = 0; for (let r = 0; r < 60; r++) { const a = []; for (let i = 0; i < 40000; i++) \
               a.push({k: (i * 7919) % 100003, s: String(i)}); a.sort((x, y) => x.k - y.k); n += JSON.stringify(a).length; \
               n += a.map(x => x.s.replace(/[13579]/g, \"\")).filter(s => s.length > 1).length } console.log(n)'",
    },
    Program { name: "java", needs: "java", line: "$RUN java $W/Work.java" },
    Program { name: "go", needs: "go", line: "$RUN $W/work-go" },
    Program {
        name: "postgres",
        needs: "postgres",
        line: "cd $W && as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=$W \"$@\"; }; \
               [ -d $W/pg ] || as_nobody initdb -D $W/pg >/dev/null; \
               as_nobody $RUN postgres --single -D $W/pg template1 <$W/work.sql",
    },
    Program {
        name: "ruby",
        needs: "ruby",
        line: "$RUN ruby -e 'def tree(n) = n > 0 ? [tree(n - 1), n.to_s, tree(n - 1)] : []
25.times { |i| a = (0...60000).map { |k| [k * 7919 % 100003, k.to_s] }.sort_by { |k, s| [s.size, k] }
h = a.to_h { |k, s| [s, k] }; h.select { |s, k| s =~ /7.*3/ }.size; tree(14).flatten.join.hash }'",
    },
    Program {
        name: "perl",
        needs: "perl",
        line: "$RUN perl -e 'sub tree { my $n = shift; $n ? [tree($n - 1), $n, tree($n - 1)] : [] }
for my $i (1 .. 25) { my %h = map { $_ => $_ * 7919 % 100003 } 0 .. 40000;
my @s = sort { $h{$a} <=> $h{$b} } keys %h; my $t = join \",\", @s; $t =~ s/([0-9]+)7/<$1>/g; tree(13) }'",
    },
    Program {
        name: "rustc",
        needs: "rustc",
        line: "$RUN rustc --edition 2021 -O -C codegen-units=4 --crate-type lib -o $W/libwork.rlib $W/work.rs",
    },
    Program {
        name: "chromium",
        needs: "chromium",
        line: "$RUN chromium --headless --no-sandbox --disable-gpu --user-data-dir=$W/chromium --virtual-time-budget=100000 \
               --dump-dom file://$W/work.html",
    },
];

impl Program {
    /// Whether it is installed.
    pub(crate) fn is_there(&self) -> bool {
        is_installed(self.needs)
    }

    /// Runs it in `directory` with `prefix` in front, without its output. Returns whether it succeeded.
    pub(crate) fn run(&self, prefix: &str, directory: &Path) -> bool {
        let mut command = Command::new("sh");
        command.args(["-c", self.line]).env("RUN", prefix).env("W", directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

/// Creates the input of the programs.
pub(crate) fn prepare(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).expect("ours");
    let mut c = String::from("#include <stdio.h>\n#include <string.h>\n");
    for i in 0..450 {
        c.push_str(&format!(
            "int f{i}(const char *s, int n) {{ int sum = {i}; for (int i = 0; i < n; i++) {{ switch (s[i] & 7) {{ case 0: sum += \
             strlen(s); break; case 1: sum *= n + {i}; break; case 2: sum ^= i << 3; break; default: sum -= s[n - i - 1]; }} if \
             (sum > 1000) sum /= 3; }} return printf(\"%d\", sum); }}\n"
        ));
    }
    let mut rust = String::from("use std::collections::{BTreeMap, HashMap};\n");
    for i in 0..15 {
        rust.push_str(&format!(
            "pub fn f{i}(words: &[String]) -> Vec<(String, [u64; {n}])> {{ let mut m: HashMap<String, [u64; {n}]> = HashMap::new(); \
             for w in words {{ m.entry(w.chars().rev().collect()).or_insert([0; {n}])[w.len() % {n}] += {i}; }} let b: BTreeMap<_, _> = \
             m.into_iter().filter(|(k, _)| k.len() > {i}).collect(); let mut v: Vec<_> = b.into_iter().collect(); \
             v.sort_by_key(|(k, c)| (c[0], k.len())); v }}\n",
            n = i % 9 + 1
        ));
    }
    let go = "package main\n\nimport \"C\" // a loader starts it\n\nimport (\n\t\"encoding/json\"\n\t\"fmt\"\n\t\"sort\"\n\t\"strings\"\n\t\"sync\"\n)\n\nfunc work(seed int) int {\n\
              \tm := map[string][]int{}\n\tfor i := 0; i < 60000; i++ {\n\t\tk := fmt.Sprint(i * seed % 1009)\n\t\tm[k] = append(m[k], i)\n\t}\n\
              \tt, _ := json.Marshal(m)\n\tvar b map[string][]int\n\tjson.Unmarshal(t, &b)\n\tw := strings.Fields(strings.ReplaceAll(string(t), \",\", \" \"))\n\
              \tsort.Strings(w)\n\treturn len(w) + len(b)\n}\n\nfunc main() {\n\tvar g sync.WaitGroup\n\tfor i := 0; i < 40; i++ {\n\t\tg.Add(1)\n\
              \t\tgo func() { defer g.Done(); work(i + 7) }()\n\t}\n\tg.Wait()\n}\n";
    let java = "import java.util.*;\nimport java.util.stream.*;\npublic class Work { static Object tree(int n) { return n > 0 ? \
                List.of(tree(n - 1), n, tree(n - 1)) : List.of(); }\n public static void main(String[] a) { for (int r = 0; r < 40; r++) { \
                Map<String, Integer> m = IntStream.range(0, 60000).boxed().collect(Collectors.toMap(String::valueOf, i -> i * 7919 % 100003));\n \
                List<String> s = m.entrySet().stream().sorted(Map.Entry.comparingByValue()).map(e -> e.getKey().replaceAll(\"[13]\", \"\"))\
                .collect(Collectors.toList()); if (s.hashCode() + tree(14).toString().hashCode() == 42) System.out.println(s); } } }\n";
    let sql = "create table t as select i, i * 7919 % 100003 as k, md5(i::text) as s from generate_series(1, 300000) i;\n\
               create index x on t(k);\nselect count(*), sum(length(s)) from t join (select k as q from t where i % 7 = 0) u on k = q;\n\
               select s, count(*) from t where s ~ '[0-9]a.*f$' group by s order by 2, 1 limit 5;\ndrop table t;\n";
    let html = "<body><script>let n = 0; for (let r = 0; r < 4; r++) { const a = []; for (let i = 0; i < 30000; i++) a.push({k: i * 7919 % \
                100003, s: String(i)}); a.sort((x, y) => x.k - y.k); n += JSON.stringify(a).length; for (let i = 0; i < 300; i++) { const d = \
                document.createElement('div'); d.textContent = a[i].s; d.style.width = i + 'px'; document.body.append(d); n += \
                d.getBoundingClientRect().width } } document.title = n</script>";
    for (name, text) in [
        ("big.c", &*c),
        ("work.rs", &rust),
        ("work.go", go),
        ("Work.java", java),
        ("work.sql", sql),
        ("work.html", html),
    ] {
        let file = directory.join(name);
        fs::write(&file, text).expect("writable");
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("ours");
    }
    if is_installed("go") {
        let mut build = Command::new("go");
        build.args(["build", "-o", "work-go", "work.go"]).current_dir(directory);
        let status = build.env("GOCACHE", directory.join("go-cache")).env("GOFLAGS", "-mod=mod").status();
        assert!(status.is_ok_and(|status| status.success()), "go build");
    }
}
