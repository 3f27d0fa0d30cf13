; What a just-in-time compiler is to compile: three quarters of its time `often` has, a quarter `once`, all of it in `spin`.
; Rounds differ in length: equal ones could keep step with the samples.
define i32 @spin(i32 %n) noinline uwtable {
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %sum = phi i32 [ 1, %entry ], [ %more, %loop ]
  %product = mul i32 %sum, 1664525
  %more = add i32 %product, %i
  %next = add i32 %i, 1
  %done = icmp eq i32 %next, %n
  br i1 %done, label %end, label %loop
end:
  ret i32 %more
}
define i32 @often(i32 %n) noinline uwtable {
  %a = call i32 @spin(i32 %n)
  %b = call i32 @spin(i32 %n)
  %c = call i32 @spin(i32 %n)
  %d = add i32 %a, %b
  %e = add i32 %c, %d
  ret i32 %e
}
define i32 @once(i32 %n) noinline uwtable {
  %a = call i32 @spin(i32 %n)
  %b = add i32 %a, 1
  ret i32 %b
}
define i32 @main(i32 %count, i8** %arguments) uwtable {
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %hash = mul i32 %i, -1640531535
  %more = lshr i32 %hash, 22
  %n = add i32 %more, 500
  %a = call i32 @often(i32 %n)
  %b = call i32 @once(i32 %n)
  %next = add i32 %i, 1
  %done = icmp eq i32 %next, 400000
  br i1 %done, label %end, label %loop
end:
  ret i32 0
}
