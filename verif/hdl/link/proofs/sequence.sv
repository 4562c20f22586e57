// Repetition over wires of one cycle that lose and damage frames: the window of a sender with 4
// flits, and a receiver. Flits have numbers of 8 bits here, of which frames carry 3.
module frame_check_39 (input [38:0] body, output [31:0] check);
    assign check = 0;  // `damage` below sets the checksum of a frame
endmodule

module proof (
    input clk,
    input accept, slot, back, tell,      // what either end does, at any time
    input lose, damage, lose_answer,
    input [12:0] head,
    input [10:0] noise,                  // what a damaged frame has, or an answer that was lost
    input channel,
    output good
);
    reg [7:0] accepted = 0, delivered = 0, acknowledged = 0;
    reg carries = 0, answers = 0;
    reg [7:0] number = 0, answer = 0;
    reg [2:0] sequence_ = 0;
    wire [2:0] new_, next, repeated;
    wire full, wrong, received;
    wire [20:0] flit;
    wire [19:0] report;
    wire [38:0] body;
    wire waiting;
    reg intact = 0, damaged = 0, returns = 0, asked = 0;  // `asked`: since the last delivery

    wire [2:0] behind = new_ - next;
    wire send = accept & ~full & behind == 0;
    wire again = slot & ~back & behind != 0;
    wire heard = answers & ~lose_answer;
    window window (
        .clk(clk), .rst(1'b0), .send(send), .again(again), .heard(heard),
        .acknowledge(heard ? answer[2:0] : noise[2:0]), .back(back), .\new (new_), .next(next), .full(full),
        .wrong(wrong), .repeated(repeated));
    receiver receiver (
        .clk(clk), .rst(1'b0), .down(1'b0), .valid(carries & ~lose),
        .frame({31'b0, damage, 10'b0, damage ? noise[10:8] : sequence_, 4'b0, 1'b1, channel,
                head, damage ? noise[7:0] : number}),
        .received(received), .flit(flit), .report(report), .body(body), .waiting(waiting));

    always @(posedge clk) begin
        carries <= send | again;
        number <= accepted - behind;
        sequence_ <= next;
        answers <= tell;
        answer <= delivered;
        if (send) accepted <= accepted + 1;
        if (received) delivered <= delivered + 1;
        if (heard) acknowledged <= answer;
        intact <= carries & ~lose & ~damage;
        damaged <= carries & ~lose & damage;
        returns <= back;
        asked <= ~received & (asked | report[14]);
    end

    wire [7:0] kept = accepted - acknowledged, known = delivered - acknowledged;
    wire [7:0] place = number + 8'd4 - delivered, unsent = accepted - number - 1;
    wire checked = report[0] & body[22];
    wire [7:0] checked_place = body[7:0] + 8'd5 - delivered;
    wire [7:0] checked_unsent = accepted - body[7:0] - 1;
    wire [7:0] news = answer - acknowledged;
    wire [2:0] oldest = next - repeated;
    assign good =
        // Flits are delivered in order, at most once, and are kept until then.
        (~received | flit[7:0] == delivered) & known <= kept & kept <= 4 & ~wrong
        // An intact frame is heard; if it has the flit that is expected, the flit is delivered.
        & (~intact | checked) & (~checked | checked_place != 5 | received)
        // A loss is reported once: a damaged frame, or a flit behind the one that is expected.
        & (~(damaged | checked & checked_place > 5) | asked | report[14])
        // A window that goes back begins with the oldest flit.
        & (~returns | repeated == 0)
        // Invariants.
        & asked == waiting
        & new_ == accepted[2:0] & oldest == acknowledged[2:0] & repeated <= kept
        & report[19:17] == delivered[2:0]
        & (~carries | sequence_ == number[2:0] & place <= 7 & unsent <= 8)
        & (~checked | body[29:27] == body[2:0] & checked_place <= 8 & checked_unsent <= 9)
        & (~answers | news <= known);
endmodule
