/** Calls that are known: main, eleven of deep, both, often or once, inner, spin. Says nothing, which would run much else. */
class Graph {
    static final int[] words = new int[1024];

    static int spin(int n) {
        int sum = n;
        for (int i = 0; i < n; i++) {
            sum = sum * 31 + words[(sum ^ i) & 1023];
            words[i & 1023] = sum;
        }
        return sum;
    }

    static int inner(int n) {
        int sum = 0;
        for (int i = 0; i < 4; i++)
            sum += spin(n + i);
        return sum;
    }

    static int often(int n) {
        return inner(n) + inner(n + 1) + inner(n + 2);
    }

    static int once(int n) {
        return inner(n);
    }

    static int both(int n) {
        return often(n) + once(n);
    }

    static int deep(int depth, int n) {
        return depth == 0 ? both(n) : deep(depth - 1, n) + 1;
    }

    public static void main(String[] milliseconds) {
        long end = System.nanoTime() + Long.parseLong(milliseconds[0]) * 1000000L;
        while (System.nanoTime() < end)
            deep(10, 300);
    }
}
