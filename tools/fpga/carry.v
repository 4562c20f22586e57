// Adders whose carry input is constant, for the carry cells of an ECP5.
//
// Place and route leads a carry input into a chain by a cell of its own, even if it is constant.
// Here the chain's first position makes only the carry of bit 0: LUT4 is 0 for C = D = 1, so the
// carry output is LUT2 of A and B, whatever CIN is. The sum of bit 0 is logic.
// If the last position is free, its sum is the last carry: this leads it out of the chain.
// Adders of up to 4 bits, and those with a variable carry input, are left to Yosys: the name of the
// module comes before that of Yosys' own.

(* techmap_celltype = "$alu" *)
module _70_constant_carry_alu (A, B, CI, BI, X, Y, CO);
  parameter A_SIGNED = 0;
  parameter B_SIGNED = 0;
  parameter A_WIDTH = 1;
  parameter B_WIDTH = 1;
  parameter Y_WIDTH = 1;
  parameter _TECHMAP_CONSTMSK_CI_ = 0;
  parameter _TECHMAP_CONSTMSK_BI_ = 0;
  parameter _TECHMAP_CONSTVAL_CI_ = 0;
  parameter _TECHMAP_CONSTVAL_BI_ = 0;

  (* force_downto *) input [A_WIDTH-1:0] A;
  (* force_downto *) input [B_WIDTH-1:0] B;
  input CI, BI;
  (* force_downto *) output [Y_WIDTH-1:0] X, Y, CO;

  wire _TECHMAP_FAIL_ = Y_WIDTH <= 4 || !_TECHMAP_CONSTMSK_CI_ || !_TECHMAP_CONSTMSK_BI_;

  localparam CELLS = (Y_WIDTH + 1) / 2;
  localparam [15:0] SUM = 16'b1001011010101010;
  // LUT2 of bit 0: A & B, A | B, A & ~B, A | ~B.
  localparam [15:0] CARRY = _TECHMAP_CONSTVAL_BI_ ? (_TECHMAP_CONSTVAL_CI_ ? 16'hb : 16'h2)
                                                  : (_TECHMAP_CONSTVAL_CI_ ? 16'he : 16'h8);

  (* force_downto *) wire [Y_WIDTH-1:0] a, b;
  \$pos #(.A_SIGNED(A_SIGNED), .A_WIDTH(A_WIDTH), .Y_WIDTH(Y_WIDTH)) extend_a (.A(A), .Y(a));
  \$pos #(.A_SIGNED(B_SIGNED), .A_WIDTH(B_WIDTH), .Y_WIDTH(Y_WIDTH)) extend_b (.A(B), .Y(b));

  (* force_downto *) wire [2*CELLS-1:0] left = a, right = b, sum;
  (* force_downto *) wire [CELLS:0] carry;
  assign carry[0] = 1'bx;
  assign X = a ^ (BI ? ~b : b);
  assign Y = {sum[Y_WIDTH-1:1], X[0] ^ CI};

  genvar i;
  generate
    for (i = 0; i < CELLS; i = i + 1) begin : pair
      CCU2C #(
        .INIT0(i ? SUM : CARRY), .INIT1(SUM), .INJECT1_0("NO"), .INJECT1_1("NO")
      ) cell (
        .CIN(carry[i]), .COUT(carry[i+1]), .S0(sum[2*i]), .S1(sum[2*i+1]),
        .A0(left[2*i]), .B0(right[2*i]), .C0(i ? BI : 1'b1), .D0(1'b1),
        .A1(left[2*i+1]), .B1(right[2*i+1]), .C1(BI), .D1(1'b1));
    end
    for (i = 0; i < Y_WIDTH; i = i + 1) begin : out
      if (i % 2) assign CO[i] = carry[(i+1)/2];
      else if (i == Y_WIDTH - 1) assign CO[i] = sum[Y_WIDTH] ^ BI;
      else if (i) assign CO[i] = (a[i] & (BI ? ~b[i] : b[i])) | (CO[i-1] & (a[i] | (BI ? ~b[i] : b[i])));
      else assign CO[i] = CI ? a[0] | (BI ? ~b[0] : b[0]) : a[0] & (BI ? ~b[0] : b[0]);
    end
  endgenerate
endmodule
